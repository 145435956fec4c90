// The time that a rank's instructions take. Space for all events is allocated before the first
// step.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "schema/format/timeline.h"
#include "schema/program.h"

namespace pp {

// The kinds of communication between ranks, by purpose.
enum class CommKind : uint8_t { kMessages, kGradients, kTied, kNorm, kWeights };
inline constexpr std::array<std::string_view, 5> kCommNames = {"messages", "gradients", "tied",
                                                               "norm", "weights"};
// REQUIRES: not an instruction of the compute lane.
CommKind CommKindOf(Op op);

// The time of one kind, in seconds.
struct CommTime {
  double total = 0;    // from start to end, of all its instructions
  double exposed = 0;  // of that, while the compute lane was waiting for it
};

struct CommTimes {
  std::array<CommTime, kCommNames.size()> kinds;
  CommTime& operator[](CommKind kind) { return kinds[static_cast<size_t>(kind)]; }
  CommTimes& operator+=(const CommTimes& other) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      kinds[i].total += other.kinds[i].total;
      kinds[i].exposed += other.kinds[i].exposed;
    }
    return *this;
  }
};

// How the compute thread spent its time, in seconds; or, if kernels run asynchronously, the device.
struct TimeSpent {
  double total = 0;    // of all steps and evaluations, without checkpoints
  double kernels = 0;  // of the device
  double waiting = 0;  // for other lanes and ranks; asynchronous kernels: all other time
  // Processor time outside of the kernels: the runtime's own. (Not total - kernels - waiting, which
  // includes the time that other processes took in between.)
  double own = 0;
  double starting = 0;       // processor time for starting kernels, if they run asynchronously
  int64_t instructions = 0;  // of the lists that were executed, of all lanes
  CommTimes communication;

  TimeSpent& operator+=(const TimeSpent& other);
  double OwnPerInstruction() const {
    return instructions == 0 ? 0 : own / static_cast<double>(instructions);
  }
};

// The events of one thread in one routine. A run of more than kMaxEvents instructions per rank
// keeps the first whole steps.
class Recorder {
 public:
  static constexpr int64_t kMaxEvents = 1'000'000;

  // `routine`: as Event has it.
  Recorder(int rank, int device, int routine) : rank_(rank), device_(device), routine_(routine) {}

  // Room for `steps` times `per_step` events, the instructions of a whole body of
  // `body` instructions deciding how many steps fit.
  void Reserve(int64_t per_step, int64_t body, int64_t steps);

  // An event whose start and end are written later; null: no room. It stays where it is.
  struct Times {
    double start = 0, end = 0;
  };
  Times* Add(int index, int64_t step) {
    if (step > last_step_) return nullptr;
    instructions_.push_back({index, static_cast<int32_t>(step)});
    return &times_.emplace_back();
  }
  void Add(int index, int64_t step, const Times& times) {
    if (Times* mine = Add(index, step)) *mine = times;
  }

  // When all times are written.
  void AppendTo(std::vector<Event>* events) const;

 private:
  const int rank_, device_, routine_;
  int64_t last_step_ = 0;
  struct What {
    int32_t index, step;
  };
  std::vector<What> instructions_;
  std::vector<Times> times_;  // as long; never more than reserved
};

}  // namespace pp
