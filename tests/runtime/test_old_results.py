from prefect import flow, task
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings
from prefect.utilities.engine import get_state_for_result

from coderl_tasks.runtime.display import forget_old_task_results
from coderl_tasks.runtime.prefect_server import used


class Result:
    """What Prefect can tell from any other object."""


@task
def produce() -> Result:
    return Result()


@flow
def produce_many(kept: int) -> tuple[int, bool, bool]:
    """How many results are remembered in the end, and whether the first and the last are."""
    results = [produce() for _ in range(2 * kept)]
    forget_old_task_results(kept)
    context = FlowRunContext.get()
    assert context is not None
    first, *_, last = (get_state_for_result(result) is not None for result in results)
    return len(context.run_results), first, last


def test_a_long_run_remembers_the_newest_results_of_its_tasks(prefect_api: str) -> None:
    with used(prefect_api), temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: False}):
        assert produce_many(4) == (4, False, True)
