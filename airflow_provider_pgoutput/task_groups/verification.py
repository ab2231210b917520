"""The verification of a lake as one task group, with a repair of what differs if it is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import TaskGroup, task

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.operators.verify import PgoutputVerifyOperator
from airflow_provider_pgoutput.tasks.arguments import optional_text_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.proof.request import ProofRequest

NEVER: Final = "never"
APPROVED: Final = "approved"
ALWAYS: Final = "always"
_BODY: Final = """{{% for each in ti.xcom_pull(task_ids="{task_id}")["tables"]
   if each["is_equal"] == false %}}
{{% if "missing" in each %}}
* `{{{{ each["table_name"] }}}}`: {{{{ each["missing"] }}}} missing, {{{{ each["surplus"] }}}} surplus,
  {{{{ each["different"] }}}} different rows
{{% else %}}
* `{{{{ each["table_name"] }}}}`: its rows could not be counted
{{% endif %}}
{{% endfor %}}"""


class _RepairApproved(PgoutputVerifyOperator):
    """Repairs the tables that somebody approved, and no others."""

    custom_operator_name = PgoutputVerifyOperator.__name__
    tables: Any

    def _request(self) -> ProofRequest:
        # No list means all tables. XCom gives none if it was cleared.
        if not optional_text_list(self.tables, "tables"):
            raise ConfigurationError(
                "XCom has no list of the tables that were approved, so nothing is repaired.",
                advice="clear the task verify and all behind it, so that somebody approves again.",
            )
        return super()._request()


def verify_lake(
    *,
    slot_name: str,
    publication_names: Sequence[str] | str,
    staging_uri: str,
    namespace: str,
    group_id: str = "verify_lake",
    repair: str = NEVER,
    verify_options: Mapping[str, Any] | None = None,
    approval_options: Mapping[str, Any] | None = None,
) -> TaskGroup:
    """Make the tasks ``verify [>> differing >> approve >> repair]`` in the current DAG.

    :param slot_name: the pipeline's replication slot. (templated)
    :param publication_names: the pipeline's publications. (templated)
    :param staging_uri: the pipeline's staging area. (templated)
    :param namespace: namespace of the Iceberg tables. (templated)
    :param group_id: name of the task group.
    :param repair: ``never``: the task ``verify`` fails if a table differs. ``always``: it repairs the table,
        and verifies it once more. ``approved``: if tables differ, the task ``approve`` shows them and waits
        for an answer on Airflow's page "Required Actions". Then the task ``repair`` does the rest.
    :param verify_options: further arguments of each ``PgoutputVerifyOperator``.
    :param approval_options: further arguments of Airflow's ``ApprovalOperator``.
    """
    if repair not in {NEVER, APPROVED, ALWAYS}:
        raise ConfigurationError(
            f"Unknown repair {repair!r}.", advice=f"use {NEVER!r}, {APPROVED!r} or {ALWAYS!r}."
        )
    arguments = {
        "slot_name": slot_name,
        "publication_names": publication_names,
        "staging_uri": staging_uri,
        "namespace": namespace,
        **(verify_options or {}),
    }
    answers = {NEVER: "fail", APPROVED: "succeed", ALWAYS: "repair"}
    with TaskGroup(group_id=group_id, tooltip="Verify the lake") as group:
        verify = PgoutputVerifyOperator(
            task_id="verify", **{**arguments, "on_difference": answers[repair]}
        )
        if repair == APPROVED:
            _repair_when_approved(verify, arguments, approval_options or {})
    return group


def _repair_when_approved(
    verify: PgoutputVerifyOperator,
    arguments: Mapping[str, Any],
    approval_options: Mapping[str, Any],
) -> None:
    from airflow.providers.standard.operators.hitl import ApprovalOperator

    tables = task.short_circuit(task_id="differing")(differing)(verify.output)
    shown = {
        "subject": f"Repair tables of {arguments['namespace']}?",
        "body": _BODY.format(task_id=verify.task_id),
    }
    approve = ApprovalOperator(task_id="approve", **{**shown, **approval_options})
    repair = _RepairApproved(
        task_id="repair", **{**arguments, "tables": tables, "on_difference": "repair"}
    )
    tables >> approve >> repair


def differing(found: Any) -> list[str]:
    """The tables that differ. If there are none, nothing is repaired.

    :param found: what the verification returned.
    """
    return [each["table_name"] for each in found["tables"] if each["is_equal"] is False]
