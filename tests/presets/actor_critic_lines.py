"""The presets of BA3C, A2C, A3C, PPO, APPO, IMPALA and HTS-RL, line by line."""

from __future__ import annotations

from tests.presets.common_lines import (
    ADAM,
    CENTRAL,
    COMMON,
    CONSTANT_RATE,
    EXCHANGE,
    LAPTOP,
    LOSS,
    NO_ADAM,
    NO_RMSPROP,
    SMOKE,
    SMOKE_EVALUATION,
    SMOKE_NETWORK,
)
from tests.presets.lines import (
    A3C16,
    ACCEL_RL,
    ADAMSKI,
    BA3C_CODE,
    BASELINES_PPO,
    CLEANRL,
    HTS,
    IMPALA,
    KOSTRIKOV,
    KOSTRIKOV_A2C,
    LASAGNE,
    OURS,
    PPO,
    PPO1,
    PPO_MUJOCO,
    SCALABLE_AGENT,
    STOOKE,
    UNUSED,
    ZOO,
    Table,
    lines,
)

# BA3C ----------------------------------------------------------------------------------------------------------------

BA3C_LOSS = {
    **LOSS,
    **lines(BA3C_CODE, unroll_length=5, value_cost=0.5, log_epsilon=1e-6),
    **lines(OURS, importance_clip=0.0),
    **lines("as " + BA3C_CODE, epochs=1, clip_range=0.0, normalize_advantages=False, gae_lambda=1.0),
    **lines(OURS + ": not used with one epoch", pool_batches=8),
}
BA3C_DEFAULT = {
    **COMMON, **ADAM, **EXCHANGE, **BA3C_LOSS,
    **lines(BA3C_CODE, batch_size=32, learning_rate=1e-3),
    **lines(OURS, compute_dtype="bfloat16", life_loss_terminal=False, schedule="asynchronous", simulators=32, groups=2,
            workers=2, parameter_servers=None, adam_epsilon=1e-8),
}  # fmt: skip
BA3C_LAPTOP = {
    **BA3C_DEFAULT, **LAPTOP,
    **lines(OURS, life_loss_terminal=True, unroll_length=20, importance_clip=1.0, simulators=16, queue_batches=1,
            batch_size=64, adam_epsilon=1e-5, clip_global_norm=0.5),
    **lines(OURS + ", for Breakout", gae_lambda=0.8, learning_rate=2e-3),
}  # fmt: skip
BA3C_PAPER = {
    **BA3C_DEFAULT,
    **lines(BA3C_CODE, protocol="ba3c", simulators=10, batch_size=32, clip_tensor_average_norm=0.1),
    **lines(BA3C_CODE + ", distributed_tensorpack_mkl.sh", queue_batches=1),
    **lines(OURS + ": 3 predictors take up to 16 observations there", groups=2),
    **lines(ADAMSKI + ", table 2 and figure 6", network="ba3c", fc_neurons=128),
    **lines("all papers compute in float32", compute_dtype="float32"),
    **lines(ADAMSKI + ", section 2.4", learning_rate=1e-3, adam_epsilon=1e-8, beta1=0.8, beta2=0.75),
    **lines(ADAMSKI + ", section 2.3.3 and the released code", workers=64, parameter_servers=4, quorum=60,
            updates="synchronous"),
    **lines(ADAMSKI + ", section 2.2", chief="dedicated"),
    **lines(ADAMSKI + ", section 3.1: every 1,000 updates 50 games, whole ones, on a node of its own",
            eval_every_updates=1_000, eval_games=50, eval_time_share=1.0, evaluation_minutes=0.0, evaluator=True),
    **lines(BA3C_CODE + ", early stop", target_score=300.0),
    **lines(OURS + ": to the target", minutes=0.0),
}  # fmt: skip
BA3C_SMOKE = {
    **BA3C_DEFAULT, **SMOKE, **SMOKE_EVALUATION,
    **lines(OURS, simulators=32, clip_global_norm=0.5),
}  # fmt: skip

# A2C and A3C ---------------------------------------------------------------------------------------------------------

A2C_DEFAULT = {
    **COMMON, **NO_ADAM, **LOSS,
    **lines(A3C16 + ", section 8", unroll_length=5),
    **lines("n-step returns, as " + A3C16, gae_lambda=1.0),
    **lines(ACCEL_RL + ", algos/pg/a2c.py", value_cost=0.25),
    **lines(STOOKE + ", section 5.3", simulators=16),
    **lines(STOOKE + ", section 4.1", schedule="synchronized", batch_size=0),
    **lines(KOSTRIKOV_A2C, optimizer="rmsprop", learning_rate=7e-4, rmsprop_decay=0.99, rmsprop_epsilon=1e-5,
            rmsprop_epsilon_inside=False, clip_global_norm=0.5),
    **lines(OURS, groups=1),
}  # fmt: skip
A2C_LAPTOP = {**A2C_DEFAULT, **LAPTOP}
ADAM_OF_SMOKE = {**ADAM, **lines(OURS, learning_rate=2e-3, clip_global_norm=0.5, adam_epsilon=1e-8)}
A2C_SMOKE = {**A2C_LAPTOP, **SMOKE, **SMOKE_EVALUATION, **ADAM_OF_SMOKE, **lines(OURS, simulators=8, unroll_length=10)}
ENVIRONMENT_OF_STOOKE = {
    **lines(STOOKE + ", section 5.1", protocol="stooke"),
    **lines(STOOKE + ", section 5.3; their number from accel_rl, samplers/base.py", random_start_steps=2_000),
    **lines(STOOKE + ", tables 2 and 3: 50 million steps", agent_steps=50_000_000, minutes=0.0),
}
A2C_STOOKE = {
    **A2C_DEFAULT, **ENVIRONMENT_OF_STOOKE,
    **lines(STOOKE + ", section 5.1", network="a3c"),
    **lines(STOOKE + ", section 4.1", groups=2),
    **lines(STOOKE + ", section 5.3", learning_rate=7e-4),
    **lines(LASAGNE, rmsprop_decay=0.9, rmsprop_epsilon=1e-6, rmsprop_epsilon_inside=True),
    **lines(ACCEL_RL + ", algos/pg/a2c.py", clip_global_norm=0.5),
}  # fmt: skip

# PPO and APPO --------------------------------------------------------------------------------------------------------

PPO_DEFAULT = {
    **COMMON, **ADAM, **LOSS,
    **lines(PPO, unroll_length=128, epochs=3, batch_size=32 * 8, gae_lambda=0.95, discount=0.99, simulators=8,
            clip_range=0.1, clip_range_schedule="linear", value_cost=1.0, entropy_cost=0.01, learning_rate=2.5e-4,
            learning_rate_schedule="linear", learning_rate_end=0.0),
    **lines("Schulman et al. 2017, table 6: 40 million frames", learning_rate_agent_steps=10_000_000),
    **lines(PPO1, adam_epsilon=1e-5, normalize_advantages=True, clip_global_norm=0.0),
    **lines(OURS, schedule="synchronized", groups=1),
    **lines(UNUSED, value_clip_range=0.0),
}  # fmt: skip
PPO_OF_BASELINES = {
    **CONSTANT_RATE,
    **lines(BASELINES_PPO, unroll_length=128, epochs=4, batch_size=256, gae_lambda=0.95, simulators=8, clip_range=0.1,
            adam_epsilon=1e-5, clip_global_norm=0.5, normalize_advantages=True, entropy_cost=0.01),
    **lines(ACCEL_RL + ", algos/pg/ppo.py, for a network as small", learning_rate=1e-3),
    **lines(BASELINES_PPO + ", of whole squares, not of halves", value_cost=0.5),
    **lines(OURS, clip_range_schedule="constant", value_clip_range=0.0),
}  # fmt: skip
PPO_LAPTOP = {**PPO_DEFAULT, **LAPTOP, **PPO_OF_BASELINES}
PPO_SMOKE = {
    **PPO_LAPTOP, **SMOKE, **SMOKE_EVALUATION, **ADAM_OF_SMOKE,
    **lines(OURS, unroll_length=16, batch_size=32),
}  # fmt: skip
PPO_STOOKE = {
    **PPO_DEFAULT, **ENVIRONMENT_OF_STOOKE,
    **lines(STOOKE + ", section 5.1", network="a3c"),
    **lines(STOOKE + ", section 4.1", groups=2),
    **lines(STOOKE + ", section 5.3", simulators=8, unroll_length=256, batch_size=2_048 // 4, epochs=4),
    **lines(ACCEL_RL + ", algos/pg/ppo.py", learning_rate=1e-3, clip_range=0.2, value_cost=1.0, adam_epsilon=1e-5,
            normalize_advantages=False, clip_global_norm=0.0, gae_lambda=0.95),
    **lines(STOOKE + ", section 5.3: APPO alone has no schedule", learning_rate_schedule="linear",
            clip_range_schedule="linear", learning_rate_agent_steps=50_000_000),
}  # fmt: skip
PPO_OF_MUJOCO = {
    **PPO_DEFAULT, **SMOKE_NETWORK,
    **lines(OURS, game="HalfCheetah-v5", eval_every_updates=16_000, eval_games=10),
    **lines("continuous games have no lives", life_loss_terminal=False),
    **lines(PPO_MUJOCO, unroll_length=2_048, learning_rate=3e-4, epochs=10, batch_size=64, discount=0.99,
            gae_lambda=0.95),
    **lines("Schulman et al. 2017, section 6.1", clip_range=0.2, clip_range_schedule="constant", network="mlp",
            entropy_cost=0.0, agent_steps=1_000_000, minutes=0.0),
    **lines(CLEANRL, simulators=1, normalize_observations=True, normalize_rewards=True, reward_clip=0.0,
            learning_rate_schedule="linear", learning_rate_agent_steps=1_000_000, adam_epsilon=1e-5,
            clip_global_norm=0.5, value_clip_range=0.2, normalize_advantages=True),
    **lines(CLEANRL + ": 0.5 of half squares", value_cost=0.25),
}  # fmt: skip
PPO_OF_HALF_CHEETAH = {
    **PPO_OF_MUJOCO,
    **lines(ZOO, unroll_length=512, epochs=20, discount=0.98, gae_lambda=0.92, clip_range=0.1, value_clip_range=0.0,
            entropy_cost=0.000401762, value_cost=0.58096, learning_rate=2.0633e-5, clip_global_norm=0.8,
            learning_rate_schedule="constant", hidden_layers=(256, 256), activation="relu",
            initial_log_deviation=-2.0),
}  # fmt: skip
APPO_OF_STOOKE = {
    **CONSTANT_RATE, **CENTRAL,
    **lines(STOOKE + ", section 5.3", simulators=8, unroll_length=256, batch_size=2_048 // 4, epochs=4,
            learning_rate=1e-3 / 4, learning_rate_schedule="constant", clip_range_schedule="constant",
            refresh_every_steps=64, local_steps=1),
    **lines(ACCEL_RL + ", algos/pg/ppo.py", clip_range=0.2, value_cost=1.0, adam_epsilon=1e-5,
            normalize_advantages=False, gae_lambda=0.95),
    **lines(ACCEL_RL + ", comm_skip/async_ppo_skip_optimizer.py", clip_global_norm=0.5),
}  # fmt: skip
APPO_LAPTOP = {
    **PPO_LAPTOP, **CENTRAL,
    **lines(STOOKE + ", section 5.3: a quarter of PPO's rate", learning_rate=1e-3 / 4),
    **lines(STOOKE + ", section 5.3", refresh_every_steps=64, local_steps=1),
}  # fmt: skip

# IMPALA --------------------------------------------------------------------------------------------------------------

IMPALA_DEFAULT = {
    **COMMON, **NO_ADAM, **LOSS,
    **lines(IMPALA, unroll_length=20, discount=0.99, entropy_cost=0.01, batch_size=32 * 20, learning_rate=6e-4,
            rmsprop_epsilon=0.01, clip_global_norm=40.0, learning_rate_schedule="linear", learning_rate_end=0.0,
            reward_clip=1.0),
    **lines(IMPALA + ": 0.5 of half squares (" + SCALABLE_AGENT + ")", value_cost=0.25),
    **lines("Espeholt et al. 2018: 200 million frames", learning_rate_agent_steps=50_000_000),
    **lines(SCALABLE_AGENT, loss_reduction="sum", rmsprop_decay=0.99, optimizer="rmsprop"),
    **lines("TensorFlow 1, which it uses", rmsprop_epsilon_inside=True),
    **lines("Espeholt et al. 2018, section 4.1", rho_clip=1.0, c_clip=1.0),
    **lines(OURS, schedule="asynchronous", simulators=32, groups=2, queue_batches=1),
}  # fmt: skip
IMPALA_LAPTOP = {
    **IMPALA_DEFAULT, **LAPTOP, **CONSTANT_RATE, **ADAM,
    **lines(OURS, simulators=8, batch_size=80, loss_reduction="mean", learning_rate=1e-3, adam_epsilon=1e-5,
            clip_global_norm=0.5, c_clip=0.9),
}  # fmt: skip
IMPALA_SMOKE = {
    **IMPALA_DEFAULT, **LAPTOP, **SMOKE, **SMOKE_EVALUATION, **CONSTANT_RATE, **NO_RMSPROP, **ADAM_OF_SMOKE,
    **lines(OURS, simulators=8, unroll_length=10, batch_size=0, value_cost=0.5, loss_reduction="mean"),
}  # fmt: skip

# HTS-RL --------------------------------------------------------------------------------------------------------------

DOUBLE_BUFFERED = {
    **lines("Liu et al. 2020, section 4.1", schedule="double-buffered"),
    **lines(HTS, simulators=16),
    **lines(OURS, groups=2),
}
HTS_A2C_DEFAULT = {**A2C_DEFAULT, **DOUBLE_BUFFERED, **lines(KOSTRIKOV, value_cost=0.5)}
HTS_PPO_DEFAULT = {
    **PPO_DEFAULT, **DOUBLE_BUFFERED,
    **lines(KOSTRIKOV, epochs=4, clip_range=0.1, clip_range_schedule="constant", value_clip_range=0.1,
            clip_global_norm=0.5, learning_rate=2.5e-4),
    **lines(KOSTRIKOV + ": 4 minibatches", batch_size=16 * 128 // 4),
    **lines(KOSTRIKOV + ": 0.5 of half squares", value_cost=0.25),
    **lines(HTS + ": 20 million steps", learning_rate_agent_steps=20_000_000),
}  # fmt: skip
HTS_A2C_LAPTOP = {**HTS_A2C_DEFAULT, **LAPTOP}
HTS_PPO_LAPTOP = {**HTS_PPO_DEFAULT, **LAPTOP, **PPO_OF_BASELINES}
HTS_OF_SMOKE = {**lines("Liu et al. 2020, section 4.1", schedule="double-buffered"), **lines(OURS, groups=2)}

ACTOR_CRITIC: dict[tuple[str, str], Table] = {
    ("ba3c", "default"): BA3C_DEFAULT,
    ("ba3c", "laptop"): BA3C_LAPTOP,
    ("ba3c", "ba3c-paper"): BA3C_PAPER,
    ("ba3c", "smoke"): BA3C_SMOKE,
    ("a2c", "default"): A2C_DEFAULT,
    ("a2c", "laptop"): A2C_LAPTOP,
    ("a2c", "smoke"): A2C_SMOKE,
    ("a2c", "stooke"): A2C_STOOKE,
    ("a3c", "default"): {**A2C_DEFAULT, **CENTRAL},
    ("a3c", "laptop"): {**A2C_LAPTOP, **CENTRAL},
    ("a3c", "smoke"): {**A2C_SMOKE, **CENTRAL},
    ("a3c", "stooke"): {**A2C_STOOKE, **CENTRAL},
    ("ppo", "default"): PPO_DEFAULT,
    ("ppo", "laptop"): {**PPO_LAPTOP, **lines(OURS + ", for Breakout", gae_lambda=0.8, learning_rate=2e-3)},
    ("ppo", "smoke"): PPO_SMOKE,
    ("ppo", "stooke"): PPO_STOOKE,
    ("ppo", "mujoco"): PPO_OF_HALF_CHEETAH,
    ("appo", "default"): {**PPO_DEFAULT, **APPO_OF_STOOKE},
    ("appo", "laptop"): APPO_LAPTOP,
    ("appo", "smoke"): {**PPO_SMOKE, **CENTRAL, **lines(STOOKE + ", section 5.3", local_steps=1)},
    ("appo", "stooke"): {**PPO_STOOKE, **APPO_OF_STOOKE},
    ("impala", "default"): IMPALA_DEFAULT,
    ("impala", "laptop"): IMPALA_LAPTOP,
    ("impala", "smoke"): IMPALA_SMOKE,
    ("hts-a2c", "default"): HTS_A2C_DEFAULT,
    ("hts-a2c", "laptop"): HTS_A2C_LAPTOP,
    ("hts-a2c", "smoke"): {**A2C_SMOKE, **HTS_OF_SMOKE},
    ("hts-ppo", "default"): HTS_PPO_DEFAULT,
    ("hts-ppo", "laptop"): {**HTS_PPO_LAPTOP, **lines(OURS, simulators=8)},
    ("hts-ppo", "smoke"): {**PPO_SMOKE, **HTS_OF_SMOKE},
}
