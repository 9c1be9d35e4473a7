"""The questions people ask of a run or a curation, as SQL over the views of `query.py`."""

from dataclasses import dataclass

from coderl_tasks.insight.record import STAGES
from coderl_tasks.problems.profile_columns import N_FROM_RUN


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """`over` is what it reads: a run or a curation. What only `rollouts` has, texts, is read of a few steps: `steps` is
    SQL for their `run` and `step`. It may not change the answer, as all rollouts are read by who asks `sql` alone."""

    name: str
    over: str
    question: str
    sql: str
    steps: str = ""


RUN, CURATION = "run", "curation"
PROFILED = ("pass_rates", "samples")
"""The queries that an unprofiled pool has no answer to."""

_SAMPLED = f"n_samples - coalesce({N_FROM_RUN}, 0)"
"""A problem's completions that were sampled for the profile: with `from_run`, `n_samples` also counts rollouts."""

# fmt: off
# Before a LIMIT, the order ends with the row's key: ties would be cut another way each time. Joining with the maximum
# takes half as long as numbering all rows of a problem.
_LONGEST = """
            SELECT run, step, group_index, sample_index, n_completion_tokens AS tokens
            FROM outcomes JOIN (
                SELECT run, problem_id, max(n_completion_tokens) AS n_completion_tokens
                FROM outcomes GROUP BY run, problem_id
            ) USING (run, problem_id, n_completion_tokens)
            QUALIFY row_number() OVER (PARTITION BY run, problem_id ORDER BY step, group_index, sample_index) = 1
            ORDER BY tokens DESC, run, step, group_index, sample_index LIMIT 25"""
_SHOWN_STEPS = """
            SELECT run, step FROM (
                SELECT DISTINCT run, step FROM outcomes
                WHERE verdict NOT IN ('infra_error', 'checker_error')
            )
            QUALIFY (row_number() OVER (PARTITION BY run ORDER BY step) - 1)
                    % greatest((count(*) OVER (PARTITION BY run) - 1) // 9, 1) = 0
                 OR row_number() OVER (PARTITION BY run ORDER BY step) = count(*) OVER (PARTITION BY run)"""
_FIFTHS = """5 * (step - min(step) OVER w) // (1 + max(step) OVER w - min(step) OVER w) AS fifth,
                   5 * (max(step) OVER w - min(step) OVER w) // (1 + max(step) OVER w - min(step) OVER w) AS latest"""
_CHANGED = """
        SELECT a.run, a.split, a.problem_id, b.verdict AS baseline, a.verdict AS final, a.code
        FROM eval_rollouts a JOIN eval_rollouts b USING (run, problem_id, split, sample_index)
        WHERE a.eval = 'final' AND b.eval = 'baseline' AND {}
        ORDER BY a.run, a.split, a.problem_id"""
NAMED_QUERIES: dict[str, NamedQuery] = {query.name: query for query in (
    # kl has three significant digits: on the embedded server it is about 1e-9, and decimals would show 0.
    NamedQuery("steps", RUN, "How did training go, step by step?", """
        SELECT run, step, round(mean_reward, 3) AS reward, round(mean_correct, 3) AS correct,
               round(format_rate, 3) AS format, round(truncated_rate, 3) AS truncated, groups_skipped AS skipped,
               groups_total AS groups, n_datums AS datums, CASE WHEN kl_sample_train <> 0
               THEN round(kl_sample_train, 2 - floor(log10(abs(kl_sample_train)))::INT)
               ELSE kl_sample_train END AS kl, infra_errors AS infra, round(time_step_s, 1) AS seconds
        FROM metrics WHERE groups_total IS NOT NULL ORDER BY run, step"""),
    NamedQuery("acts", RUN, "What did steer=act change, and why?", """
        SELECT run, step, act FROM metrics WHERE act IS NOT NULL ORDER BY run, step"""),
    NamedQuery("evals", RUN, "What is Pass@1, by evaluation and split?", """
        SELECT run, eval, step, split, n, round(pass_at_1, 4) AS pass_at_1, round(ci_low, 4) AS ci_low,
               round(ci_high, 4) AS ci_high
        FROM eval_splits ANTI JOIN (SELECT * FROM evals WHERE taken_from IS NOT NULL) USING (run, eval)
        ORDER BY run, step, eval, split <> 'overall', split"""),
    NamedQuery("verdicts", RUN, "How do verdicts shift from the first fifth of the steps to the last?", f"""
        WITH placed AS (
            SELECT run, verdict, {_FIFTHS}
            FROM outcomes WHERE verdict IS NOT NULL WINDOW w AS (PARTITION BY run)
        ), counted AS (
            SELECT run, verdict, count(*) AS completions, count(*) FILTER (fifth = 0) AS early,
                   count(*) FILTER (fifth = latest) AS late
            FROM placed GROUP BY run, verdict
        )
        SELECT run, verdict, completions, round(early / sum(early) OVER r, 4) AS first_fifth,
               round(late / sum(late) OVER r, 4) AS last_fifth
        FROM counted WINDOW r AS (PARTITION BY run) ORDER BY run, completions DESC, verdict"""),
    NamedQuery("suspicious", RUN, "Which programs seem to have taken their reward from the tests or the grader?", """
        SELECT run, step, problem_id, group_index, sample_index, verdict, reward, suspicion
        FROM rollouts WHERE suspicion IS NOT NULL ORDER BY run, step, group_index, sample_index"""),
    NamedQuery("held_back", RUN, "Which problems reward programs that fail tests held back?", """
        SELECT run, problem_id, count(*) AS passed, count(*) FILTER (NOT passes_held_back) AS failed_held_back,
               max(step) AS last_step
        FROM rollouts WHERE passes_held_back IS NOT NULL
        GROUP BY run, problem_id HAVING failed_held_back > 0
        ORDER BY run, failed_held_back DESC, problem_id LIMIT 25"""),
    NamedQuery("turns", RUN, "What do replies add: how often is each answer the last, and right?", """
        SELECT run, n_turns AS answers, count(*) AS completions, count(*) FILTER (verdict = 'passed') AS passed,
               round(avg((verdict = 'passed')::INT), 3) AS pass_rate, round(avg(n_completion_tokens)) AS tokens
        FROM outcomes WHERE n_turns IS NOT NULL AND reward IS NOT NULL
        GROUP BY run, n_turns ORDER BY run, n_turns"""),
    NamedQuery("hardest", RUN, "Which training problems does the policy fail most?", """
        SELECT run, problem_id, split, count(*) AS completions, count(*) FILTER (verdict = 'passed') AS passed,
               round(avg((verdict = 'passed')::INT), 3) AS pass_rate, mode(verdict ORDER BY verdict) AS usual_verdict,
               max(step) AS last_step
        FROM outcomes WHERE reward IS NOT NULL
        GROUP BY run, problem_id, split ORDER BY run, pass_rate, completions DESC, problem_id LIMIT 25"""),
    NamedQuery("sources", RUN, "How does each source of problems do, from the first fifth to the last?", f"""
        WITH placed AS (
            SELECT run, split, reward, verdict, n_completion_tokens AS tokens, trained,
                   {_FIFTHS}
            FROM outcomes WHERE reward IS NOT NULL WINDOW w AS (PARTITION BY run)
        )
        SELECT run, split, count(*) AS completions, round(avg(reward), 3) AS reward,
               round(avg((verdict = 'passed')::INT), 3) AS passed,
               round(avg(reward) FILTER (fifth = 0), 3) AS reward_early,
               round(avg(reward) FILTER (fifth = latest), 3) AS reward_late,
               round(avg(trained::INT), 3) AS trained, round(avg(tokens), 1) AS tokens
        FROM placed GROUP BY run, split ORDER BY run, completions DESC, split"""),
    NamedQuery("lengths", RUN, "Do longer completions earn more? By tenths of their lengths.", """
        WITH tenths AS (
            SELECT run, n_completion_tokens AS tokens, reward, verdict, stop_reason,
                   ntile(10) OVER lengths AS tenth
            FROM outcomes WHERE reward IS NOT NULL
            WINDOW lengths AS (PARTITION BY run ORDER BY n_completion_tokens, step, group_index, sample_index)
        )
        SELECT run, tenth, min(tokens) AS shortest, max(tokens) AS longest, round(avg(reward), 3) AS reward,
               round(avg((verdict = 'passed')::INT), 3) AS passed,
               round(avg((stop_reason = 'length')::INT), 3) AS truncated
        FROM tenths GROUP BY run, tenth ORDER BY run, tenth"""),
    NamedQuery("time_outs", RUN, "On which problems do programs run out of time, and does that fade?", """
        SELECT run, problem_id, split, count(*) FILTER (verdict = 'time_limit') AS time_outs, count(*) AS completions,
               round(avg((verdict = 'time_limit')::INT), 3) AS share,
               max(step) FILTER (verdict = 'time_limit') AS last_step,
               round(max(run_seconds) FILTER (verdict = 'passed'), 2) AS slowest_passed
        FROM outcomes WHERE verdict IS NOT NULL
        GROUP BY run, problem_id, split HAVING time_outs > 0
        ORDER BY time_outs DESC, run, problem_id LIMIT 25"""),
    NamedQuery("staleness", RUN, "How far behind was the policy that sampled, and what did that cost?", """
        SELECT run, step - 1 - sampler_step AS steps_behind, count(*) AS completions, round(avg(reward), 3) AS reward,
               round(avg((verdict = 'passed')::INT) FILTER (reward IS NOT NULL), 3) AS passed,
               round(avg(trained::INT), 3) AS trained
        FROM outcomes GROUP BY run, steps_behind ORDER BY run, steps_behind"""),
    NamedQuery("hardest_solved", RUN, "Which problems were hopeless for longest, and then solved?", """
        WITH groups AS (
            SELECT run, problem_id, split, step, count(*) AS completions,
                   count(*) FILTER (verdict = 'passed') AS passed
            FROM outcomes WHERE reward IS NOT NULL GROUP BY run, problem_id, split, step
        ), firsts AS (
            SELECT *, min(step) FILTER (passed > 0) OVER (PARTITION BY run, problem_id) AS first_solved FROM groups
        )
        SELECT run, problem_id, split, first_solved, sum(completions) FILTER (step < first_solved) AS failed_before,
               round(sum(passed) FILTER (step >= first_solved)
                     / sum(completions) FILTER (step >= first_solved), 3) AS pass_rate_since
        FROM firsts WHERE first_solved IS NOT NULL GROUP BY run, problem_id, split, first_solved
        ORDER BY failed_before DESC NULLS LAST, first_solved, run, problem_id LIMIT 25"""),
    NamedQuery("problems", RUN, "How did each problem's pass rate move, visit by visit?", """
        WITH visits AS (
            SELECT run, problem_id, split, step, group_index, round(avg((verdict = 'passed')::INT), 2) AS pass_rate
            FROM outcomes WHERE reward IS NOT NULL
            GROUP BY run, problem_id, split, step, group_index
        )
        SELECT run, problem_id, split, count(*) AS visits, min(step) AS first_step, max(step) AS last_step,
               arg_min(pass_rate, [step, group_index]) AS first_rate,
               arg_max(pass_rate, [step, group_index]) AS last_rate,
               string_agg(step || ': ' || pass_rate, ', ' ORDER BY step, group_index) AS by_step
        FROM visits GROUP BY run, problem_id, split ORDER BY run, visits DESC, problem_id"""),
    NamedQuery("worse", RUN, "Which training problems are solved less often now than at first?", """
        WITH visits AS (
            SELECT run, problem_id, split, step, count(*) AS graded, count(*) FILTER (verdict = 'passed') AS passed
            FROM outcomes WHERE reward IS NOT NULL GROUP BY run, problem_id, split, step
        )
        SELECT run, problem_id, split, min(step) AS first_step, arg_min(passed, step) AS first_passed,
               arg_min(graded, step) AS first_graded, max(step) AS last_step, arg_max(passed, step) AS last_passed,
               arg_max(graded, step) AS last_graded,
               round(last_passed / last_graded - first_passed / first_graded, 3) AS change
        FROM visits GROUP BY run, problem_id, split HAVING change < 0
        ORDER BY run, change, problem_id"""),
    NamedQuery("tests", RUN, "Which test of which problem stops the most programs, and after how long?", """
        SELECT run, problem_id, first_failed AS test, count(*) AS programs,
               mode(verdict ORDER BY verdict) AS usual_verdict, round(avg(run_seconds), 3) AS cpu_seconds,
               max(step) AS last_step
        FROM outcomes WHERE first_failed IS NOT NULL
        GROUP BY run, problem_id, first_failed ORDER BY programs DESC, run, problem_id, test LIMIT 25"""),
    # An infra error is neither a pass nor a failure of the policy: it is no flip in either direction.
    NamedQuery("flips", RUN, "Which test problems failed at the baseline and pass in the end?", _CHANGED.format(
        "a.verdict = 'passed' AND b.verdict NOT IN ('passed', 'infra_error', 'checker_error')")),
    NamedQuery("losses", RUN, "Which test problems passed at the baseline and fail in the end?", _CHANGED.format(
        "b.verdict = 'passed' AND a.verdict NOT IN ('passed', 'infra_error', 'checker_error')")),
    NamedQuery("degenerate_groups", RUN, "Which groups gave no gradient, all rewards being equal?", """
        SELECT run, step, group_index, any_value(problem_id) AS problem_id, count(reward) AS graded,
               round(min(reward), 3) AS reward, mode(verdict ORDER BY verdict) AS usual_verdict
        FROM outcomes GROUP BY run, step, group_index
        HAVING NOT coalesce(bool_or(trained), false)
        ORDER BY run, step, group_index"""),
    NamedQuery("longest", RUN, "Which completions are the longest, one per problem?", f"""
        WITH chosen AS ({_LONGEST})
        SELECT run, step, problem_id, sample_index, chosen.tokens, stop_reason, verdict,
               left(completion, 80) AS beginning
        FROM rollouts JOIN chosen USING (run, step, group_index, sample_index)
        ORDER BY tokens DESC, run, step, group_index, sample_index""",
        f"SELECT run, step FROM ({_LONGEST})"),
    NamedQuery("slowest", RUN, "Which programs took the most CPU time, one per problem?", """
        SELECT run, step, problem_id, sample_index, round(run_seconds, 3) AS cpu_seconds, tests_run, verdict
        FROM outcomes JOIN (
            SELECT run, problem_id, max(run_seconds) AS run_seconds FROM outcomes GROUP BY run, problem_id
        ) USING (run, problem_id, run_seconds)
        QUALIFY row_number() OVER (PARTITION BY run, problem_id ORDER BY step, group_index, sample_index) = 1
        ORDER BY run_seconds DESC, run, step, group_index, sample_index LIMIT 25"""),
    # The keys are chosen first, then the texts are read: with them a long run does not fit in memory.
    NamedQuery("rollout_samples", RUN, "What do right and wrong completions look like, in some ten steps?", f"""
        WITH chosen AS (
            SELECT run, step, group_index, sample_index, verdict = 'passed' AS passed
            FROM outcomes JOIN ({_SHOWN_STEPS}) USING (run, step)
            WHERE verdict NOT IN ('infra_error', 'checker_error')
            QUALIFY row_number() OVER (PARTITION BY run, step, passed ORDER BY sample_index, group_index) <= 2
        )
        SELECT run, step, problem_id, sample_index, verdict, tests_passed, tests_total, round(reward, 3) AS reward,
               stop_reason, completion
        FROM rollouts JOIN chosen USING (run, step, group_index, sample_index)
        ORDER BY run, step, passed DESC, sample_index, group_index""", _SHOWN_STEPS),
    NamedQuery("infra", RUN, "Which completions could not be graded, for reasons that are not the program's?", """
        SELECT run, 'train' AS source, step, problem_id, group_index, sample_index, verdict FROM outcomes
        WHERE verdict IN ('infra_error', 'checker_error')
        UNION ALL
        SELECT run, eval, step, problem_id, group_index, sample_index, verdict FROM eval_rollouts
        WHERE verdict IN ('infra_error', 'checker_error')
        ORDER BY ALL"""),
    NamedQuery("times", RUN, "Where does the time go?", """
        SELECT run, count(*) AS steps, round(median(time_sample_s), 2) AS sample_s,
               round(median(time_score_s), 2) AS score_s, round(median(time_base_s), 2) AS base_s,
               round(median(time_train_s), 2) AS train_s, round(median(time_step_s), 2) AS step_s,
               round(sum(time_step_s) / 60, 1) AS total_min
        FROM metrics WHERE groups_total IS NOT NULL GROUP BY run ORDER BY run"""),
    NamedQuery("costs", RUN, "What were tokens spent on, by kind?", """
        SELECT run, 'train' AS use, count(*) AS steps, sum(tokens_prompt)::BIGINT AS prompt,
               sum(tokens_prompt_cached)::BIGINT AS cached_prompt, sum(tokens_completion)::BIGINT AS completion,
               sum(tokens_training)::BIGINT AS training, sum(tokens_base)::BIGINT AS base_model,
               round(sum(cost_usd), 4) AS usd
        FROM metrics WHERE groups_total IS NOT NULL GROUP BY run
        UNION ALL
        SELECT run, eval, NULL, sum(prompt + replies)::BIGINT, sum(prompt * (n - 1) + kept)::BIGINT,
               sum(completion)::BIGINT, 0, 0, NULL
        FROM (
            SELECT run, eval, max(len(prompt_tokens)) AS prompt, count(*) AS n,
                   sum(len(completion_tokens)) AS completion,
                   coalesce(sum(list_sum([len(turn.environment_tokens) for turn in later])), 0) AS replies,
                   coalesce(sum(list_sum([turn.kept for turn in later])), 0) AS kept
            FROM (
                SELECT *, [turn for turn in turns if turn.stop_reason IS NOT NULL][2:] AS later FROM eval_rollouts
            ) ANTI JOIN (SELECT * FROM evals WHERE taken_from IS NOT NULL) USING (run, eval)
            GROUP BY run, eval, group_index, attempt
        ) GROUP BY run, eval
        ORDER BY ALL"""),
    NamedQuery("checkpoints", RUN, "Which checkpoints are there?", "SELECT * FROM checkpoints ORDER BY run, step"),
    NamedQuery("updates", RUN, "How far does the policy move over the optimizer steps of a step?", """
        SELECT run, step, update, epoch, n_datums AS datums, round(loss, 3) AS loss, round(kl_sample_train, 6) AS kl,
               round(ratio_mean, 4) AS ratio, round(ratio_max, 3) AS greatest, round(clipped_share, 4) AS clipped,
               round(grad_norm, 3) AS grad_norm
        FROM updates ORDER BY run, step, update"""),
    NamedQuery("pool", CURATION, "What is the pool made of?", """
        SELECT run, split, coalesce(difficulty, 'not profiled') AS difficulty, count(*) AS problems,
               round(avg(pass_rate), 3) AS pass_rate, round(avg(posterior_mean), 3) AS posterior_mean,
               round(avg(difficulty_probability), 3) AS label_probability,
               round(avg(mean_completion_tokens), 1) AS tokens
        FROM pool GROUP BY run, split, difficulty ORDER BY run, split, pass_rate"""),
    NamedQuery("dropped", CURATION, "What was dropped, where and why?", """
        SELECT run, stage, reason, count(*) AS problems, min(problem_id) AS example
        FROM dropped GROUP BY run, stage, reason ORDER BY run, problems DESC, stage, reason"""),
    NamedQuery("funnel", CURATION, "How many problems are left after each stage?", f"""
        WITH counted AS (
            SELECT run, stage, reason, count(*) AS dropped, list_position({list(STAGES)}, stage) AS place
            FROM dropped GROUP BY run, stage, reason
        ), whole AS (
            SELECT run, count(*) AS read FROM (SELECT run FROM pool UNION ALL SELECT run FROM dropped) GROUP BY run
        )
        SELECT run, stage, reason, dropped, (read - sum(dropped) OVER w)::BIGINT AS remaining
        FROM counted JOIN whole USING (run)
        WINDOW w AS (PARTITION BY run ORDER BY place NULLS LAST, stage, dropped DESC, reason)
        ORDER BY run, remaining DESC, place NULLS LAST, stage, dropped DESC, reason"""),
    NamedQuery("drops", CURATION, "What do dropped problems look like, ten of each reason?", """
        SELECT run, stage, reason, coalesce(problem_id, 'row ' || source_row) AS problem, split, detail,
               left(statement, 120) AS beginning
        FROM dropped
        QUALIFY row_number() OVER (PARTITION BY run, stage, reason ORDER BY split, source_row) <= 10
        ORDER BY run, stage, reason, split, source_row"""),
    NamedQuery("samples", CURATION, "How many completions did the profile take, against 16 per problem?", f"""
        SELECT run, split, count(*) AS problems, sum({_SAMPLED})::BIGINT AS samples, 16 * count(*) AS fixed_16,
               round(sum({_SAMPLED}) / (16 * count(*)), 3) AS share, round(avg({_SAMPLED}), 2) AS a_problem,
               sum(completion_tokens_spent)::BIGINT AS tokens
        FROM profile GROUP BY run, split ORDER BY run, split"""),
    NamedQuery("suspects", CURATION, "Which problems may have several right answers?", """
        SELECT s.run, s.split, s.problem_id, p.pass_rate, p.problem_id IS NOT NULL AS in_pool, s.suspicion
        FROM solutions s LEFT JOIN pool p USING (run, problem_id)
        WHERE multi_answer_suspect ORDER BY s.run, s.split, s.problem_id"""),
    NamedQuery("references", CURATION, "What did the problems' own solutions show?", """
        SELECT run, split, status, count(*) AS problems, count(*) FILTER (multi_answer_suspect) AS suspects,
               min(problem_id) AS example
        FROM solutions GROUP BY run, split, status ORDER BY run, split, problems DESC, status"""),
    NamedQuery("pass_rates", CURATION, "How hard are the profiled problems?", f"""
        SELECT run, split, count(*) AS problems, count(*) FILTER (pass_rate = 0) AS never,
               count(*) FILTER (pass_rate > 0 AND pass_rate < 1) AS mixed, count(*) FILTER (pass_rate = 1) AS always,
               round(avg(pass_rate), 3) AS mean_pass_rate, round(sum(hard_probability), 1) AS expected_hard,
               round(sum(medium_probability), 1) AS expected_medium, round(sum(easy_probability), 1) AS expected_easy,
               sum({_SAMPLED}) AS samples
        FROM profile GROUP BY run, split ORDER BY run, split"""),
)}
# fmt: on
