#include "runtime/device/rope_angles.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "schema/model/families.h"

namespace pp {
namespace {

// How far from `begin`, where it is 0, to `end`, where it is 1.
double Ramp(double x, double begin, double end) {
  return std::clamp((x - begin) / (end - begin), 0.0, 1.0);
}

// Which of the head_dim/2 pairs, not a whole number of them, turns so often in the original
// positions.
double PairOf(const RopeConfig& rope, int head_dim, double turns) {
  return head_dim * std::log(rope.original_positions / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(double{rope.theta}));
}

// How much of its own speed pair i keeps; the rest is `factor` times as slow.
std::function<double(int i, double turn)> SpeedOf(const RopeConfig& rope, int head_dim) {
  switch (rope.scaling) {
    case RopeScaling::kNone:
      return [](int, double) { return 1; };
    case RopeScaling::kLinear:
      return [](int, double) { return 0; };
    case RopeScaling::kLlama3:
      return [rope](int, double turn) {
        return Ramp(rope.original_positions * turn / (2 * std::numbers::pi), rope.low_factor,
                    rope.high_factor);
      };
    case RopeScaling::kYarn:
      double low = PairOf(rope, head_dim, rope.beta_fast);
      double high = PairOf(rope, head_dim, rope.beta_slow);
      if (rope.truncate) low = std::floor(low), high = std::ceil(high);
      low = std::max(low, 0.0), high = std::min(high, head_dim - 1.0);
      if (low == high) high += 0.001;  // as transformers does
      return [low, high](int i, double) { return 1 - Ramp(i, low, high); };
  }
  PP_CHECK(false);
}

// The rotation per position, for the head_dim/2 pairs of a head, in radians.
std::vector<double> RopeTurns(const RopeConfig& rope, int head_dim) {
  const auto speed = SpeedOf(rope, head_dim);
  std::vector<double> turns;
  for (int i = 0; i < head_dim / 2; ++i) {
    const double turn = std::pow(double{rope.theta}, -2.0 * i / head_dim), own = speed(i, turn);
    turns.push_back(own * turn + (1 - own) * turn / rope.factor);
  }
  return turns;
}

}  // namespace

std::vector<float> RopeAngles(const Job& job) {
  std::vector<double> turns;
  double length = 1;
  for (const Operator& op : TableOf(job.model).layer)
    if (op.kind == OperatorKind::kRope) {
      turns = RopeTurns(op.rope, op.head_dim);
      length = op.rope.attention_factor;
    }
  const auto pairs = static_cast<int64_t>(turns.size());
  const int64_t tokens = job.sequence_length;
  std::vector<float> angles(2 * tokens * pairs);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(t) * turns[i];
      angles[t * pairs + i] = static_cast<float>(length * std::cos(angle));
      angles[(tokens + t) * pairs + i] = static_cast<float>(length * std::sin(angle));
    }
  }
  return angles;
}

}  // namespace pp
