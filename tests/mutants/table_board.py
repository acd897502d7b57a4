"""The web page: who gets an answer, what may run in it, and what it reads."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "board-answers-without-a-token",
        "ddrl/board/server.py",
        'if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token):',
        'if given and not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token):',
        ("tests/board/test_server.py::test_no_token_no_data",),
        "Every user and every site that reaches the port reads the runs.",
    ),
    Mutant(
        "board-answers-for-any-host",
        "ddrl/board/server.py",
        "if self.request.host_name not in HOSTS:",
        "if not self.request.host_name:",
        ("tests/board/test_server.py::test_another_host_is_refused",),
        "A site that points its own name to 127.0.0.1 may have a browser ask the board.",
    ),
    Mutant(
        "board-follows-a-log-that-is-a-link",
        "ddrl/board/run.py",
        "TAIL_BYTES, follow=False)",
        "TAIL_BYTES)",
        ("tests/board/test_run.py::test_a_log_that_is_a_link_is_not_shown",),
        "A run of somebody else shows, and a page that is sent around holds, any file of whoever looks at it.",
    ),
    Mutant(
        "board-lets-texts-end-a-script",
        "ddrl/board/page.py",
        'return text.replace("<", "\\\\u003c").replace(">", "\\\\u003e").replace("&", "\\\\u0026")',
        "return text",
        ("tests/board/test_page.py::test_no_text_ends_its_script_element",),
        "What a run's log holds becomes markup of a page that is sent around.",
    ),
    Mutant(
        "board-shows-what-was-undone",
        "ddrl/board/records.py",
        "        self.train.cut(SECONDS, seconds)\n",
        "",
        ("tests/board/test_run.py::test_what_a_resume_took_back_is_gone",),
        "Curves go back in time where a run was resumed from an older checkpoint.",
    ),
    Mutant(
        "board-thins-by-what-it-happened-to-read",
        "ddrl/board/series.py",
        "return (self._seen - 1) % self._stride == 0",
        "return self._stride == 1 or self._rows % 2 == 0",
        ("tests/board/test_series.py::test_every_kth_of_the_smallest_power_of_two_that_fits",),
        "Whoever watches a run has other curves than whoever opens it when it is over.",
    ),
)
