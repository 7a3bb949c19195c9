"""How the user's turn may begin. The target goes on from there by itself, so these are first words, not prompts.

Some questions begin with nothing at all. The rest begin with a few words of one of seven kinds of task, so that the
data is not all chat. Where the task is about a text, its first word or two are given as well, or a small target tends
to go on about the task instead of writing the text; and there is a kind whose answers copy, because that is what a
shallow draft learns last. No text of a prompt set is here.
"""

LANGUAGES = ["French", "Spanish", "German", "Italian", "Portuguese", "English"]
THINGS = ["people", "places", "dates", "companies", "products", "numbers", "prices", "animals", "countries", "verbs"]
SHAPES = ["list", "JSON object", "table", "single sentence", "comma-separated line"]
TEXTS = """The|A|An old|In the morning|Last week|Last year|Our company|My sister|My brother|When the rain|Dear Sir,
|Hello,|The river|Scientists|The city|Every summer|On Friday|During the war|First|Please|We|I|She|They|If you
|Many people|The price of|Maria and|John|Dr.|In 1998|The new|Water|Most birds|Before the meeting|Thank you for
|The teacher|Two friends|At the market|Because of|Trees|The report|Our team|There is|It was|You can|Nobody"""

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
SUMMARY = """Summarize the following:|Summarize this text:|Summarize this article in one sentence:|Shorten this:
|Give the main idea of this paragraph:|Write a summary of this:|What is the key point of this text?|Make this shorter:
|Explain this text to a child:|Condense this:"""
COPY = """Repeat this text:|Copy this sentence:|Correct the spelling of this text:|Rewrite this text:|Say this again:
|Rewrite this more politely:|Put this into the past tense:|Continue this text:|Number the sentences of this text:
|Which word comes most often in this text?"""


def _split(text: str) -> list[str]:
    return [" ".join(piece.split()) for piece in text.split("|")]


def _about(forms: list[str]) -> list[str]:
    return [f"{form} {text}" for form in forms for text in _split(TEXTS)]


def kinds() -> list[list[str]]:
    """The openings of each kind of task: chat, code, math, translation, summarization, extraction, copying."""
    translation = [
        form.format(language)
        for language in LANGUAGES
        for form in ("Translate this into {}:", "Translate the sentence to {}:", "How do you say in {}:")
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
    about = (translation, _split(SUMMARY), extraction, _split(COPY))
    return [_split(CHAT), _split(CODE), _split(MATH), *map(_about, about)]
