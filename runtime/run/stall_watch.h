// Notices when nothing makes progress any more.
//
// Ranks give heartbeats. Quiet time is counted in ticks of the watcher's own thread, not
// on a clock, so that a machine that sleeps for an hour does not look like a stalled run. A rank
// that waits for a disk does not stall: that is reported, once for each operation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pp {

class StallWatch {
 public:
  // 0 seconds: never stalls.
  StallWatch(int ranks, double seconds) : seconds_(seconds), seen_(ranks) {}

  // A sign from a rank.
  struct Sign {
    int64_t progress = 0;  // a count of all that it has finished
    std::string text;      // where it is
    bool in_file = false;  // that is a file operation
    int64_t step = 0;      // 0: none yet
    std::string process;   // that the rank is in; empty: not said
  };
  void Heartbeat(int rank, Sign sign);

  void Finished(int rank) { seen_[rank].finished = true; }

  // `seconds` have passed since the last tick. True: no rank has finished anything for the whole
  // time, and none that gives heartbeats waits for a disk.
  bool Tick(double seconds);

  // "no progress for 300 s: rank 0 (process 41 on node1) at 'WAIT grad s0 m3 from rank 1' of step
  // 7; rank 1 (process 17 on node2) does not answer".
  std::string Text() const;
  // After a tick: "rank 1 has waited 300 s for fsync of saves/.saving-00000010/rank-1", if a rank
  // waits so long for a disk and it was not told before; else empty.
  std::string TakeSlowFile();

 private:
  struct Seen {
    Sign sign{.progress = -1, .text = {}};
    double silent = 0;     // seconds since the last sign
    double in_file = 0;    // seconds that it has waited for the same file operation
    bool told = false;     // of that operation
    bool answers = false;  // gave a sign during the quiet time
    bool finished = false;
  };
  const double seconds_;
  double quiet_ = 0;
  std::vector<Seen> seen_;
};

}  // namespace pp
