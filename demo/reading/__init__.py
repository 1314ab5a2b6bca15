"""The parts of the extractive reader (:mod:`demo.reader`), from pixels to a reply.

    sight      image bytes -> a Sheet (OCR lines, their boxes and colours), cached by content
    words      text -> terms; how well two terms match (English stems, Chinese bigrams, numbers)
    question   a question -> what it asks for (terms with weights, the kind of answer, how many answers)
    layout     a Sheet -> blocks (paragraphs, labels, table cells) and sentences
    values     numbers, dates and names inside a text
    extract    question + sheet -> the best findings, each with the box it was read from
    align      a crop's lines laid back onto the page that they were cut from
    dialogue   the turns so far -> what to do next, whatever the grammar
    tags       the tag grammar: messages -> turns, a decision -> a reply

Everything but ``sight`` is pure: no I/O, no clock, no randomness.
"""
