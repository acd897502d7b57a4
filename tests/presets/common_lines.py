"""Settings that presets share, and those that no paper speaks of."""

from __future__ import annotations

from tests.presets.lines import A3C16, ADAMSKI, DQN15, OURS, UNUSED, lines

ENVIRONMENT = {
    **lines("Mnih et al. 2015, as nearly all since", protocol="nature", life_loss_terminal=True),
    **lines(OURS, game="breakout"),
    **lines(
        UNUSED, backend="auto", reset="at-once", episode_frames=0, random_start_steps=0, step_time_mean_ms=0.0,
        step_time_cv=0.0, step_time_straggler=1.0, pin_simulators=False, simulator_processes=0, football_view="map",
        football_players=1, football_checkpoints=False, game_options=(), wrappers=(),
    ),
}  # fmt: skip
"""Of Atari games."""

UNUSED_LAYERS = lines(
    UNUSED, fc_neurons=128, hidden_layers=(), activation="default", layer_norm=False, policy_layers=(300, 200),
    critic_layers=(400, 300), initial_log_deviation=0.0,
)  # fmt: skip
PUBLISHED_NETWORK = {
    **UNUSED_LAYERS,
    **lines(DQN15, network="nature"),
    **lines("all papers compute in float32", compute_dtype="float32"),
}
LAPTOP_NETWORK = {**UNUSED_LAYERS, **lines(OURS, network="a3c", compute_dtype="bfloat16")}
LAPTOP = {**LAPTOP_NETWORK, **lines(OURS + ": greedy games of Breakout get caught in loops", eval_epsilon=0.01)}
SMOKE_NETWORK = {**UNUSED_LAYERS, **lines(OURS, network="mlp", compute_dtype="float32")}

SAMPLING = lines(
    OURS, rollout_length=0, refresh_every_steps=0, predictors=0, predict_batch=0, simulator_threads=1, queue_batches=2
)
NO_REPLAY = lines(
    UNUSED, replay_capacity=1_000_000, replay_minimum=50_000, priority_exponent=0.0, importance_exponent=0.4,
    importance_exponent_end=1.0, importance_updates=1_000_000, importance_agent_steps=0,
)  # fmt: skip
NO_ACTORS = lines(
    UNUSED, actors=0, replay_shards=1, segment_length=50, segments_in_flight=8, duplicates=1, refresh_every_frames=400,
    prefetch=16, target_every_updates=2_500, trim_every_updates=100, eviction_exponent=None, samples_per_insert=0.0,
)  # fmt: skip

NO_ADAM = lines(UNUSED, adam_epsilon=1e-8, beta1=0.9, beta2=0.999)
NO_RMSPROP = lines(UNUSED, rmsprop_decay=0.99, rmsprop_epsilon=1e-5, rmsprop_epsilon_inside=False)
ADAM = {**NO_RMSPROP, **lines("Kingma and Ba 2015, algorithm 1", optimizer="adam", beta1=0.9, beta2=0.999)}
CONSTANT_RATE = {
    **lines(OURS, learning_rate_schedule="constant"),
    **lines(UNUSED, learning_rate_end=0.0, learning_rate_agent_steps=0, learning_rate_updates=100_000),
}
OPTIMIZER = {
    **CONSTANT_RATE,
    **lines(OURS, loss_reduction="mean", clip_global_norm=0.0, clip_tensor_average_norm=0.0, warmup_updates=0),
    **lines(UNUSED, learning_rate_scaling="none", learning_rate_batch=0),
}

EXCHANGE = {
    **lines(
        OURS, exchange="parameter_server", chief="trains", updates="synchronous", quorum=0, quorum_deadline_seconds=0.0,
        on_worker_loss="survive", on_server_loss="restart",
    ),
    **lines(UNUSED, max_staleness=0, store_chunks=3, local_steps=0),
}  # fmt: skip
ALONE = {**EXCHANGE, **lines(OURS, workers=1, parameter_servers=0)}
CENTRAL = {
    **EXCHANGE,
    **lines("Stooke and Abbeel 2018, section 4.3", exchange="central_store", store_chunks=3),
    **lines(OURS, workers=2, parameter_servers=None),
}

EVALUATION = {
    **lines(ADAMSKI + ", section 3.1", eval_every_updates=1_000, eval_games=50),
    **lines(
        OURS,
        evaluator=True,
        eval_agent_steps=0,
        eval_time_share=0.1,
        evaluation_minutes=3.0,
        final_evaluation_minutes=None,
        target_score=None,
        stop_at_target=True,
    ),
    **lines("greedy", eval_actions="greedy", eval_epsilon=0.0),
}
RUN = lines(
    OURS, minutes=10.0, agent_steps=0, max_updates=0, run_dir="", seed=1, checkpoint_every_minutes=5.0,
    checkpoint_every_updates=0, checkpoints_kept=3, reset_at_checkpoint=False, deterministic=False, stall_seconds=300.0,
    start_seconds=180.0, plugins=(), max_refused_steps=10, max_restarts=3, log_every_seconds=5.0, norms_every_updates=0,
    video=True, loggers=("tensorboard",), callbacks=(), init_from="",
)  # fmt: skip
SMOKE_RUN = lines(OURS, minutes=0.5, log_every_seconds=1.0, video=False)
SMOKE = {**lines(OURS, game="ddrl/Catch-v0", life_loss_terminal=False), **SMOKE_NETWORK, **SMOKE_RUN}
SMOKE_EVALUATION = lines(OURS, eval_every_updates=200, eval_games=20, eval_epsilon=0.0)

LOSS = {
    **lines(A3C16 + ", section 8", discount=0.99, entropy_cost=0.01, entropy_cost_schedule="constant"),
    **lines(DQN15, reward_clip=1.0),
    **lines(UNUSED, entropy_cost_start=0.0, entropy_cost_start_share=0.05, reward_scale=1.0),
    **lines(UNUSED, discount_start=0.0, discount_start_share=0.5),
}
"""Of actor-critic algorithms."""

NOT_NORMALIZED = lines(UNUSED, normalize_observations=False, normalize_rewards=False)

COMMON = {
    **ENVIRONMENT, **PUBLISHED_NETWORK, **NOT_NORMALIZED, **SAMPLING, **NO_REPLAY, **NO_ACTORS, **NO_ADAM, **NO_RMSPROP,
    **OPTIMIZER, **ALONE, **EVALUATION, **RUN,
}  # fmt: skip
