// What REDUCE instructions do. Both collectives give all who take part the same bits: the
// tied gradients are added look-up first, and the norm's blocks are only gathered; who
// needs the norm adds them in model order.
//
// They run on the communication thread of the rank, piece by piece.
#pragma once

#include <vector>

#include "runtime/comm/transport.h"
#include "runtime/device/arena.h"
#include "schema/program.h"

namespace pp {

// Sums the tied embedding's two gradients. Both on this device: at once. On two devices:
// they swap their parts, a piece as large as the Exchange region at a time, and add.
class TiedSum {
 public:
  // REQUIRES: Supported(program).ok().
  TiedSum(const Program& program, int device, const Arena& arena, Transport* transport);
  Status Start();
  Status Test(bool* over);

 private:
  Status StartPiece();

  Transport* transport_;
  float* mine_ = nullptr;     // this device's part; it becomes the sum
  float* other_ = nullptr;    // the other part, where it is on this device
  float* receive_ = nullptr;  // else where pieces of it come to
  int peer_ = -1;
  int64_t count_ = 0, piece_ = 0, done_ = 0;  // numbers
  bool sending_ = false, receiving_ = false;
};

// Fills the Norm region with the blocks of all devices.
class NormGather {
 public:
  NormGather(const Program& program, int device, const Arena& arena, Transport* transport);
  Status Start();
  Status Test(bool* over);

 private:
  struct Part {
    double* blocks;
    int64_t bytes;
  };
  // One direction to or from one peer; its parts go one after the other.
  struct Stream {
    Port port;
    const std::vector<Part>* parts;
    size_t next;
    bool busy;
  };

  Transport* transport_;
  std::vector<std::vector<Part>> parts_;  // device -> its stages
  std::vector<Stream> streams_;
};

}  // namespace pp
