"""Training of VRAG-RL and VimRAG agents.

``template``, ``driver`` and ``trajectory`` roll out the product's episodes token by token; they know no trainer. What
trains is ``plain_grpo`` (one process, plain PyTorch) or verl, by the plug-in.
"""

from vrag_agent.torchvision_ops import declare_when_missing

# In every process that touches this package, before anything imports transformers; verl's plug-in brings it to all workers.
declare_when_missing()
