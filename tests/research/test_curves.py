"""research/curves.py on curves that are known."""

from __future__ import annotations


def curve(script, label, seed, shares, tested=0.5):
    points = tuple((50 * at + 50, share) for at, share in enumerate(shares))
    return script.Curve("small", label, seed, points, tested)


def test_a_loss_that_learns_sooner(script):
    runs = []
    for seed in range(8):
        late = 6 + seed % 3
        runs.append(curve(script, "ce", seed, [0.0] * late + [0.6] * (12 - late), 0.6 + 0.001 * seed))
        runs.append(curve(script, "emd", seed, [0.0] * (late - 4) + [0.6, 0.95] * 6, 0.9))
        runs.append(curve(script, "smmd", seed, [0.0] * (late + (-1) ** seed) + [0.6] * 6, 0.6 + 0.001 * (7 - seed)))
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in script.table(runs) if "`" in line
    }
    assert rows["`ce`"] == ["400 (350 to 450)", "", "650 (650 to 650), 8 never", "", "60.3 %", ""]
    steps, p, to_90, p_90, exact, p_exact = rows["`emd`"]
    assert (steps, p, p_90, exact, p_exact) == ("200 (150 to 250)", "< 0.001", "< 0.001", "90.0 %", "< 0.001")
    assert "never" not in to_90
    assert float(rows["`smmd`"][1]) > 0.05
    assert float(rows["`smmd`"][5]) > 0.05
