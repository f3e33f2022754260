// Reads how a picture was made from its PNG file: the text chunk "thg", which commands and studio write.

export async function metadataOf(file) {
  const bytes = new DataView(await file.arrayBuffer());
  if (bytes.byteLength < 8 || bytes.getUint32(0) !== 0x89504e47) return null;
  const text = (start, length) => new TextDecoder("latin1").decode(new Uint8Array(bytes.buffer, start, length));
  for (let at = 8; at + 12 <= bytes.byteLength; ) {
    const length = bytes.getUint32(at);
    if (at + 12 + length > bytes.byteLength) return null;
    const content = text(at + 4, 4) === "tEXt" ? text(at + 8, length) : "";
    if (content.startsWith("thg\0")) return JSON.parse(content.slice(4));
    at += 12 + length;
  }
  return null;
}
