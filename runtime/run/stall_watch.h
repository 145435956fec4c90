// Notices when nothing makes progress any more.
//
// Ranks give signs of life. Quiet time is counted in ticks of the watcher's own thread, not
// on a clock, so that a machine that sleeps for an hour does not look like a stalled run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pp {

class StallWatch {
 public:
  // 0 seconds: never stalls.
  StallWatch(int ranks, double seconds) : seconds_(seconds), seen_(ranks) {}

  // A sign from a rank: how many instructions it has finished and where it is.
  void Heartbeat(int rank, int64_t executed, const char* text);

  void Finished(int rank) { seen_[rank].finished = true; }

  // `seconds` have passed since the last tick. True: no rank has finished an instruction
  // for the whole time.
  bool Tick(double seconds);

  // "no progress for 300 s: rank 0 at 'WAIT grad s0 m3'; rank 1 does not answer".
  std::string Text() const;

 private:
  struct Seen {
    int64_t executed = -1;
    bool answers = false;  // gave a sign during the quiet time
    bool finished = false;
    std::string text;
  };
  const double seconds_;
  double quiet_ = 0;
  std::vector<Seen> seen_;
};

}  // namespace pp
