"""The language of the tiny world: the words that its questions and turns are made of."""

from __future__ import annotations

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 70, 220),
    "yellow": (230, 220, 50),
    "purple": (140, 50, 170),
    "orange": (245, 140, 30),
    "gray": (125, 125, 125),
    "brown": (120, 75, 40),
}
# fmt: off
ANIMALS = (
    "fox", "dog", "cat", "owl", "bee", "ant", "cow", "pig", "hen", "rat", "bat", "elk", "emu", "eel", "yak", "ape",
    "cod", "jay", "ram", "doe", "hog", "gnu", "koi", "asp", "kea", "boa", "sow", "tit", "auk", "cub", "pup", "kid",
)
# fmt: on
QUESTION = "What digit is on the {colour} {animal} page?"

#: Single tokens of their own: the tags of both grammars, and what never changes in JSON.
TAGS = tuple(f"<{slash}{tag}>" for tag in ("think", "search", "bbox", "answer", "tool_call") for slash in ("", "/"))
CALL_SEARCH = ('{"name": "add_search_node", "arguments": {"id": "', '", "parent_ids": ["', '"], "query": "', '"}}')
CALL_MEMORIZE = (
    '{"name": "summarize_and_memorize", "arguments": {"summarize": "',
    '", "memorize": [{"information_id": "Picture 1", "is_useful": ',
    ', "key_timestamp": [], "priority_score": ',
    "}]}}",
)
CALL_ANSWER = ('{"name": "add_answer_node", "arguments": {"parent_ids": ["', '"], "answer": "')
#: What the linearised graph and a search result are made of.
GRAPH = (
    '[\n{"id": "root", "name": "',
    '", "content": "',
    '"},\n{"id": "',
    '"], "query": "',
    '", "summary": "',
    '", "memory": [{"id": "cards_',
    '", "kind": "image", "priority_score": ',
    '"}\n]',
    "}]}\n]",
    '}]},\n{"id": "',
    "<tool_response>",
    "</tool_response>",
    "Picture 1 (cards.pdf, page ",
    "cards.pdf, page ",
    "): ",
)
NUMBERS = ("28", "32", "56", "64")
FRAGMENTS = tuple(dict.fromkeys((*TAGS, *CALL_SEARCH, *CALL_MEMORIZE, *CALL_ANSWER, *GRAPH, *NUMBERS, "root")))

#: Texts that the vocabulary is learnt from, besides the single words.
TEXTS = (
    "user\nassistant\nsystem\n",
    QUESTION.format(colour="red", animal="fox"),
    " find read guess look again zoom keep drop answer now nothing new nothing here memory graph true false",
    "[0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]",
    "Node: Initial Node",
)
WORDS = (*COLOURS, *ANIMALS, "graph", "memory", "keep", "nothing", "true", "false", "Initial", "look", "answer")
