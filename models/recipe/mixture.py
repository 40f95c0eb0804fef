"""The training texts: conversations plain, with tools and to a schema, and plain documents."""

import json
from collections.abc import Callable
from random import Random

from models.recipe.chat_form import Message, Pieces, pieces_of
from models.recipe.conversations import SYSTEMS, WRAPPERS, chat, document, thought_of
from models.recipe.greetings import small_talk
from models.recipe.json_examples import example
from models.recipe.problems import drill, split_of, word_problems
from models.recipe.schemas import fields_for, schema_prompt
from models.recipe.stores import Errand
from models.recipe.tool_chats import errand, finishing, said, solution, tools_for
from models.recipe.toolbox import Toolbox

TOOL_SYSTEMS = (
    *SYSTEMS,
    "Use the tools.",
    "Use the calculator for every step.",
    "You can call tools. Look up what you do not know.",
    "You are a helpful assistant with access to tools.",
)
Encode = Callable[[str], list[int]]
Sample = Callable[[Random, int, Encode], tuple[list[int], list[float]]]


def schema_chat(rng: Random) -> Pieces:
    """A question to be answered as JSON, the schema in the system message or after the question,
    or known to the server's grammar only."""
    if rng.random() < 0.2:
        return pieces_of(example(rng))
    problem = next(word_problems(rng, "train"))
    while rng.random() < 0.3 or split_of(problem.question) != "train":
        problem = drill(rng)
    thinks = rng.random() < 0.15
    fields = fields_for(rng, problem, worked=thinks)
    prompt = schema_prompt(rng, [field for field, _ in fields])
    answer = said(thought_of(problem), content=json.dumps({f.name: v for f, v in fields}))
    if not thinks:
        del answer["reasoning_content"]
    question: Message = {"role": "user", "content": problem.question}
    match rng.choices(("system", "behind", "nowhere"), (4, 5, 1))[0]:
        case "system":
            system = rng.choice((prompt, f"{rng.choice(SYSTEMS)}\n\n{prompt}"))
            return pieces_of([{"role": "system", "content": system}, question, answer])
        case "nowhere" if not thinks:
            return begun(pieces_of([question, answer]))
    question["content"] += rng.choice(("\n", "\n\n", " ")) + prompt
    return pieces_of([question, answer])


def begun(pieces: Pieces) -> Pieces:
    """The same with a JSON object whose beginning the model did not choose."""
    opening = '{"'
    *others, (answer, weight) = pieces
    return [*others, (opening, 0.0), (answer.removeprefix(opening), weight)]


def tool_chat(rng: Random) -> Pieces:
    """One or two questions in a conversation with tools."""
    jobs = [errand(rng) for _ in range(1 if rng.random() < 0.85 else 2)]
    facts = tuple({fact.name: fact for job in jobs for fact in job.facts}.values())
    if len(facts) < sum(len(job.facts) for job in jobs):  # two facts of one name
        return tool_chat(rng)
    box = tools_for(rng, facts)
    finish = rng.random()
    if finish < 0.04 and not facts:
        box = Toolbox((), None, None)
    definitions = list(box.definitions)
    messages: list[Message] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(TOOL_SYSTEMS)})
    for job in jobs[:-1]:
        messages += [question_of(rng, job), *solution(rng, job, box)]
    job, worked = jobs[-1], box.calculator is not None
    if finish < 0.12:
        definition, last = finishing(rng, job.problem, worked)
        definitions.insert(rng.randint(0, len(definitions)), definition)
        messages += [question_of(rng, job), *solution(rng, job, box, finish=True), last]
    elif finish < 0.16:
        fields = fields_for(rng, job.problem, worked)
        ask = question_of(rng, job)
        ask["content"] += "\n" + schema_prompt(rng, [field for field, _ in fields])
        answer = json.dumps({field.name: value for field, value in fields})
        messages += [ask, *solution(rng, job, box, finish=True), said("Done.", content=answer)]
    elif finish < 0.2:
        small, reply = small_talk(rng)
        answer = said("No problem to solve here.", content=reply)
        messages += [{"role": "user", "content": small}, answer]
    else:
        messages += [question_of(rng, job), *solution(rng, job, box)]
    return pieces_of(with_thoughts(rng, messages), definitions)


def question_of(rng: Random, job: Errand) -> Message:
    question = job.problem.question
    if rng.random() < 0.15:
        question = rng.choice(WRAPPERS).format(question)
    return {"role": "user", "content": question}


def with_thoughts(rng: Random, messages: list[Message]) -> list[Message]:
    """Most conversations do not think; of those that do, some clients send no thoughts back."""
    kind = rng.random()
    keep_from = 0 if kind < 0.06 else len(messages) - 1 if kind < 0.1 else len(messages)
    return [
        {k: v for k, v in message.items() if k != "reasoning_content" or i >= keep_from}
        for i, message in enumerate(messages)
    ]


def plain_sample(rng: Random, turns: int, encode: Encode) -> tuple[list[int], list[float]]:
    """Token ids and loss weights of one text of about `turns` exchanges, without tools."""
    kind = rng.random()
    if kind < 0.06:
        return encoded(document(rng, turns), encode)
    return encoded(schema_chat(rng) if kind < 0.16 else chat(rng, turns), encode)


def tool_sample(rng: Random, turns: int, encode: Encode) -> tuple[list[int], list[float]]:
    """Token ids and loss weights of one conversation with tools."""
    return encoded(tool_chat(rng), encode)


def encoded(pieces: Pieces, encode: Encode) -> tuple[list[int], list[float]]:
    ids: list[int] = []
    weights: list[float] = []
    for text, weight in pieces:
        new = encode(text)
        ids += new
        weights += [weight] * len(new)
    return ids, weights
