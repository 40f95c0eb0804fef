"""pydantic-ai: tools, and its ways to an output type, over chats and over responses."""

from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    NativeOutput,
    PromptedOutput,
    RunContext,
    ToolOutput,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from tests.clients import tools
from tests.clients.api import MODEL, TIMEOUT_S, Api
from tests.clients.test_openai_structured import Item
from tests.clients.tools import SHELLS, SHELLS_LEFT, last_number

SETTINGS = ModelSettings(temperature=0, max_tokens=200, timeout=TIMEOUT_S)


class AnyObject(BaseModel):
    """Any JSON object is one."""


AnyModel = OpenAIChatModel | OpenAIResponsesModel


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel], ids=["chat", "responses"])
def model(api: Api, request: pytest.FixtureRequest) -> AnyModel:
    made: AnyModel = request.param(
        MODEL, provider=OpenAIProvider(base_url=api.base, api_key="none")
    )
    return made


async def test_text_whole_and_streamed(model: AnyModel) -> None:
    agent = Agent(model, model_settings=SETTINGS)
    whole = await agent.run(SHELLS)
    assert last_number(whole.output) == SHELLS_LEFT
    assert whole.usage.output_tokens > 0
    async with agent.run_stream(SHELLS) as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == whole.output
    assert len(pieces) > 2


@pytest.mark.parametrize("output", [Item, ToolOutput(Item), NativeOutput(Item)])
@pytest.mark.parametrize("streamed", [False, True])
async def test_output_types(model: AnyModel, output: Any, streamed: bool) -> None:
    agent: Agent[None, Any] = Agent(model, output_type=output, model_settings=SETTINGS)
    if streamed:
        async with agent.run_stream(SHELLS) as stream:
            found = await stream.get_output()
    else:
        found = (await agent.run(SHELLS)).output
    assert isinstance(found, Item)


async def test_a_prompted_output_is_json(model: AnyModel) -> None:
    """Only the prompt has the schema here, and a model without practice goes on until it is cut
    off; what ends is a JSON object."""
    for seed in range(10):
        settings = SETTINGS | ModelSettings(temperature=1.5, seed=seed)
        agent: Agent[None, Any] = Agent(
            model, output_type=PromptedOutput(AnyObject), model_settings=settings, retries=0
        )
        try:
            assert isinstance((await agent.run(SHELLS)).output, AnyObject)
            return
        except UnexpectedModelBehavior as error:
            if "limit" not in str(error):
                raise
    pytest.fail("none of ten answers ended")


async def test_tools_with_results_and_an_output(model: AnyModel) -> None:
    """An output type that is a tool makes every answer a call. The calculator is there for three
    steps: a model without practice might call it forever."""
    seen: list[str] = []

    async def at_first(run: RunContext[None], tool: ToolDefinition) -> ToolDefinition | None:
        return tool if run.run_step <= 3 else None

    agent: Agent[None, Any] = Agent(model, output_type=ToolOutput(Item), model_settings=SETTINGS)

    @agent.tool_plain(prepare=at_first)
    def calculator(call: tools.Calculator) -> str:
        """Computes."""
        seen.append(call.expression)
        return tools.calculator(call.expression)

    result = await agent.run(SHELLS)
    parts = [part for message in result.all_messages() for part in message.parts]
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    results = [part for part in parts if isinstance(part, ToolReturnPart)]
    assert len(calls) == len(results) >= len(seen) + 1
    assert isinstance(result.output, Item)


@pytest.mark.parametrize(("question", "number"), tools.AGENT_TASKS.items())
async def test_an_agent_ends_with_the_right_number(
    model: OpenAIChatModel, question: str, number: int
) -> None:
    agent = Agent(model, model_settings=SETTINGS, tools=[tools.calculator, tools.lookup])
    result = await agent.run(question)
    assert last_number(result.output) == number
