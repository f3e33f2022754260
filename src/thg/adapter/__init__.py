"""The paper's plans on diffusers pipelines: everything that needs to know the branches of guidance."""
