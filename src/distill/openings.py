"""How the user's turn may begin. The target goes on from there by itself, so these are first words, not prompts.

Half of the conversations begin with nothing at all. The rest begin with a few words of one of six kinds of task, so
that the data is not all chat. No text of a prompt set is here.
"""

LANGUAGES = ["French", "Spanish", "German", "Italian", "Portuguese", "Dutch", "English", "Latin"]
THINGS = ["people", "places", "dates", "companies", "products", "numbers", "prices", "animals", "countries", "verbs"]
SHAPES = ["list", "JSON object", "table", "single sentence", "comma-separated line"]

CHAT = """What is|What are|Why do|Why is|Why are|How do I|How can I|How does|How do|Can you explain|Explain
|Tell me about|Describe|What is the difference between|Give me|Give me some tips|I am|I want to|I need|My|Should I
|Is it|Are there|Who|When|Where|Write a short story about|Write an email to|Write a poem about|List|Suggest|Help me
|Which|Compare|Do you|What would happen if|Imagine|In simple terms, what|Recommend|Plan"""
CODE = """Write a Python function|Write a Python script|Write a function|Write a Java|Write a C++
|Write a JavaScript function|Write a SQL query|Write a class|Write a bash|Fix the bug in this code:
|What does this code do?|Explain this code:|Implement|How do I use Python to|Write a regular expression
|Write a test for|Refactor|Here is a Python function:|def|Write HTML|In Python, how|Write a program"""
MATH = """What is the sum of|What is 1|What is 2|What is 3|Calculate|Compute|Solve|Solve for x:|A car|A shop
|A farmer|If a|If there are|How many|How much|Find the|A box|A train|A recipe|Tom has|Anna buys|What percentage
|Convert|The area of|A rectangle|Show that|What is the average of|Round"""
SUMMARY = """Summarize|Summarize the following|Summarize this text:|Summarize this article in one sentence:
|Give the main idea of this paragraph:|Shorten this:|Write a summary of|What is the key point of this text?
|Rewrite this text:|Make this shorter:|Read the following text|Condense"""


def _split(text: str) -> list[str]:
    return [" ".join(piece.split()) for piece in text.split("|")]


def kinds() -> list[list[str]]:
    """The openings of each kind of task: chat, code, math, translation, summarization, extraction."""
    translation = [
        form.format(language)
        for language in LANGUAGES
        for form in (
            "Translate this into {}:",
            "Translate the sentence to {}:",
            "How do you say in {}",
            "What is the {} word",
        )
    ]
    extraction = [
        form.format(thing)
        for thing in THINGS
        for form in (
            "Extract all {} from this text:",
            "List the {} mentioned here:",
            "Find the {} in the following text:",
        )
    ]
    extraction += [f"Turn this into a {shape}:" for shape in SHAPES]
    return [_split(CHAT), _split(CODE), _split(MATH), translation, _split(SUMMARY), extraction]
