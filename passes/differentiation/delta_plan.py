"""The gradients of a delta rule as scans: which tensors take the places of q, k and v, what is erased or written besides, who reads where.

With G_t the gradient of S_t, o_t's part included, and u_t = v_t - x_t what k writes:

    dv_t = k_t^T G_t,  dx_t = -r_t^T G_t,  dq_t = S_t do_t,  de_t = (exp(g_t) S_(t-1)) dx_t,  dk_t = G_t u_t

and what G_(t-1) gets of G_t is exp(g_t) (G_t + e_t dx_t^T): the same recurrence in the other direction. There q_t do_t^T stands for
k_t v_t^T, r_t erases and e_t is removed. So a gradient that is read of G is a scan with two writers, (q, do) and (e, dx). Where another
key r is removed than k, the state has two writers, too, (k, v) and (r, z) with z = -x, and dr_t = G_t z_t.

The gradient's state is the sum of what its two writers write, so dk is the sum of two scans of one writer each, too: `apart`.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DeltaScanPlan:
    """One scan: the names of what it takes for q, k and v, and number `heads` of them has all heads."""

    operands: tuple[str, str, str]
    heads: int
    same_direction: bool
    swapped: bool
    """Whether its keys and values are values and keys of the primal."""
    initial: str
    output: str
    second: tuple[str, str] | None = None
    """Keys and values of `attn.write`."""
    erase: tuple[str, str] | None = None
    """The key of `attn.erase` and what is removed."""
    reads: str = "decayed"
    """Where `attn.erase` reads."""


def delta_plan(removed: bool, output: str) -> dict[str, DeltaScanPlan]:
    """Scans by the gradients that they make, in an order in which each finds what it takes; dx is "x".

    `removed`: another key is removed than k. `output`: where q reads. Besides these, "u" is what k writes, "z" what r does.
    """
    second, u = (("z", "r"), "v") if removed else (None, "u")
    back, erase = "written" if output == "after" else "decayed", ("r" if removed else "k", "e")

    def of_state(q: str, output: str) -> DeltaScanPlan:
        return DeltaScanPlan((q, u, "k"), 0, True, True, "initial_state", output, second)

    def of_gradient(q: str) -> DeltaScanPlan:
        return DeltaScanPlan((q, "do", "q"), 1, False, True, "d_final_state", back, ("dx", "e"))

    def reversed_(output: str) -> DeltaScanPlan:
        return DeltaScanPlan(("k", "q", "do"), 2, False, False, "d_final_state", output, None, erase, back)

    plan = {"q": of_state("do", output), "x": reversed_("values")}
    if removed:
        plan |= {"v": reversed_(back), "r": of_gradient("z")}
    return plan | {"e": of_state("dx", "decayed"), "k": of_gradient(u)}


def apart(output: str) -> dict[str, DeltaScanPlan]:
    """The same where k is removed, with one writer for each scan but dx: dk is the sum of those of the roles "k" and "w"."""
    plan = delta_plan(False, output)
    first = replace(plan["k"], second=None, output="after" if output == "after" else "decayed")
    return plan | {"k": first, "w": DeltaScanPlan(("u", "dx", "e"), 1, False, True, "", "decayed")}
