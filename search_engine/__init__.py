"""The retriever: documents in, an index on disk, a search service out. Heavy imports are lazy."""
