"""The ``baton`` command. The module of a command is imported when the command is given."""

from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from deploy.vllm_options import UpCommand
from telemetry.version import VERSION

_MODULES = MappingProxyType(
    {
        "up": "deploy.up",
        "down": "deploy.down",
        "logs": "deploy.down",
        "status": "deploy.status",
        "scale": "deploy.scale",
        "top": "deploy.top",
        "chat": "deploy.chat",
        "doctor": "deploy.doctor",
        "plan": "bench.predict.plan",
        "bench": "bench.cli",
    }
)


class _Commands(TyperGroup):
    """The commands: each is the function of its name in its module; ``bench`` is a group."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_MODULES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name == "serve" and not ctx.resilient_parsing:
            ctx.fail("serve: is vLLM's; `baton up --model MODEL` serves (docs/from-vllm.md)")
        if cmd_name not in _MODULES:
            return None
        module = import_module(_MODULES[cmd_name])
        if isinstance(found := getattr(module, "app", None), typer.Typer):
            command = get_command(found)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            kind = UpCommand if cmd_name == "up" else TyperCommand
            alone.command(cmd_name, cls=kind)(getattr(module, cmd_name))
            command = get_command(alone)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_Commands,
    name="baton",
    help="Disaggregated prefill/decode serving of large language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"baton {VERSION}")
        raise typer.Exit


@app.callback()
def _baton(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Disaggregated prefill/decode serving of large language models."""


if __name__ == "__main__":
    app()
