"""The example corpus: invented reports, decks and posters, drawn from code together with their questions.

Every organisation, place, person and figure is made up. Because the pages are drawn here, the place of each answer is
known exactly: drawing a piece of text records its box as a mark, and `questions.py` refers to marks by name.
"""
