#include "runtime/device/rope_angles.h"

#include <cmath>
#include <numbers>

#include "schema/model/families.h"

namespace pp {
namespace {

// The rotation per position, for the head_dim/2 pairs of a head, in radians.
std::vector<double> RopeTurns(const RopeConfig& rope, int head_dim) {
  std::vector<double> turns;
  for (int i = 0; i < head_dim / 2; ++i) {
    double turn = std::pow(double{rope.theta}, -2.0 * i / head_dim);
    if (rope.factor > 0) {
      const double full_turns = rope.original_positions * turn / (2 * std::numbers::pi);
      const double fast = (full_turns - rope.low_factor) / (rope.high_factor - rope.low_factor);
      if (fast <= 0) {
        turn /= rope.factor;
      } else if (fast < 1) {
        turn = (1 - fast) * turn / rope.factor + fast * turn;
      }
    }
    turns.push_back(turn);
  }
  return turns;
}

}  // namespace

std::vector<float> RopeAngles(const Job& job) {
  std::vector<double> turns;
  for (const Operator& op : TableOf(job.model).layer)
    if (op.kind == OperatorKind::kRope) turns = RopeTurns(op.rope, op.head_dim);
  const auto pairs = static_cast<int64_t>(turns.size());
  const int64_t tokens = job.sequence_length;
  std::vector<float> angles(2 * tokens * pairs);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(t) * turns[i];
      angles[t * pairs + i] = static_cast<float>(std::cos(angle));
      angles[(tokens + t) * pairs + i] = static_cast<float>(std::sin(angle));
    }
  }
  return angles;
}

}  // namespace pp
