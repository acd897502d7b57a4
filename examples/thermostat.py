"""An environment of one's own: a heater keeps a room at 20 degrees Celsius.

ddrl train ppo --plugin examples/thermostat.py --game thermostat --preset smoke
"""

import gymnasium
import numpy as np

import ddrl


class Thermostat(gymnasium.Env):
    """Two hours of a room. A step is a minute.

    Observation: <float32>[2], the temperatures inside and outside, in units of 20
    degrees. Actions: heater off, on. Reward: 1 within a degree of 20, else 0.

    Args:
        render_mode: None or rgb_array, for videos.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = gymnasium.spaces.Box(-2.0, 4.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        """A night of its own: from -5 to 10 degrees outside, and at first inside, too."""
        super().reset(seed=seed)  # makes self.np_random
        self.outside = self.inside = self.np_random.uniform(-5.0, 10.0)
        self.minute = 0
        return self._observation(), {}

    def step(self, action):
        """The heater adds 2 degrees, a twentieth of the difference to outside is lost."""
        self.inside += 2.0 * action - 0.05 * (self.inside - self.outside)
        self.minute += 1
        reward = float(abs(self.inside - 20.0) <= 1.0)
        truncated = self.minute == 120  # a time limit, and not the end of a task
        return self._observation(), reward, False, truncated, {}

    def render(self):
        """<uint8>[80, 80, 3]: a bar as high as the room is warm, and a line at 20 degrees."""
        image = np.full((80, 80, 3), 255, np.uint8)
        image[80 - int(np.clip(2 * self.inside, 0, 80)) :, 20:60] = (214, 94, 0)
        image[40] = 0
        return image

    def _observation(self):
        return np.array([self.inside, self.outside], np.float32) / 20.0


ddrl.register_environment("thermostat", Thermostat)
