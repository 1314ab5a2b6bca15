"""Training of VRAG-RL and VimRAG agents.

``template``, ``driver`` and ``trajectory`` roll out the product's episodes token by token; they know no trainer. What
trains is ``plain_grpo`` (one process, plain PyTorch) or verl, by the plug-in.
"""
