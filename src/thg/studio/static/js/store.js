// The last runs, stored in this browser by IndexedDB. Where that is not available, the history lasts until the page is
// closed.

export const KEPT = 30;

function opened() {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open("thg-studio", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("runs", { keyPath: "when" });
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
}

async function within(mode, work) {
  const database = await opened();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction("runs", mode);
      const request = work(transaction.objectStore("runs"));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

// Newest first.
export async function all() {
  try {
    return (await within("readonly", (runs) => runs.getAll())).reverse();
  } catch {
    return [];
  }
}

export async function keep(run, dropped) {
  try {
    await within("readwrite", (runs) => {
      for (const old of dropped) runs.delete(old.when);
      return runs.put(run);
    });
  } catch { /* a full or forbidden store: the page goes on without it */ }
}

export async function forget() {
  try {
    await within("readwrite", (runs) => runs.clear());
  } catch { /* nothing was kept */ }
}
