"""``baton up`` with a drain grace and restart delays of fractions of a second."""

from functools import partial

from deploy import supervisor
from deploy.cli import app
from deploy.managed_process import RestartPolicy

if __name__ == "__main__":
    supervisor.DRAIN_GRACE_S = 0.3
    supervisor.RestartPolicy = partial(RestartPolicy, first_s=0.05)
    app()
