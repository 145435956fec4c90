// What ranks tell each other besides the data: reports of steps to rank 0, and from rank 0 whether
// to continue. A star around rank 0, of small messages, each direction in order.
//
// Any thread may post. The communication thread delivers, and allocates no memory for it.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/loss_scale.h"
#include "runtime/comm/transport.h"

namespace pp {

struct ControlMessage {
  enum class Type : int32_t {
    kReport,     // to rank 0: `step` is over on this rank
    kGo,         // from rank 0: step `step` may begin; the last one is `last`
    kHeartbeat,  // either way, now and then: the sender lives, and is at `text`
    kFail,       // either way: the run has failed; the code and text of a Status
    kToken,      // to and from rank 0: a sample's next token is `code`
    // To rank 0: `val_loss` of the validation after `step`; from it: whether that is the least loss
    // so far, `code`. With --keep-best.
    kValidation,
    kBye,  // either way: nothing follows
  };
  Type type = Type::kHeartbeat;
  int32_t code = 0;
  int64_t step = 0;            // also kHeartbeat: that it is in; 0: none yet
  int64_t last = 0;            // kGo; kReport: 1 if this rank was asked to stop
  int64_t peak_bytes = 0;      // kReport
  int64_t executed = 0;        // kHeartbeat: a count of all that is finished
  bool in_file = false;        // kHeartbeat: `text` is a file operation
  double loss = 0;             // kReport: this rank's sum of losses
  double grad_norm = 0;        // kReport
  kernels::LossScale scaling;  // kReport, where the loss is scaled
  double seconds = 0;          // kReport: from the end of the previous step to the end of this one
  bool evaluated = false;      // kReport: there is a validation after this step,
  double val_loss = 0;         // and this is the rank's sum of its losses; kValidation, too
  // kReport: the rank has written its part of a checkpoint of this step, or, as `text` says, has
  // not been able to.
  enum class Save : int32_t { kNone, kWritten, kFailed } save = Save::kNone;
  // kReport: the first micro-batch whose loss is not finite, and that loss; `text` says where.
  int32_t bad_micro = -1;
  double bad_loss = 0;
  char text[512] = {};
  char process[128] = {};  // kHeartbeat: the sender's, "process 4711 on node1"

  // As much as fits.
  void SetText(const std::string& whole);
  void SetProcess();
};

class Control {
 public:
  // Called on the communication thread with each message that comes in.
  using Handler = std::function<void(int from, const ControlMessage&)>;
  Control(Transport* transport, Handler handler);

  // Any thread. A kHeartbeat is dropped if too many messages are queued, and so is everything after
  // a kBye.
  void Post(int to, const ControlMessage& message);
  // To all ranks that this one is connected to.
  void PostAll(const ControlMessage& message);

  // The communication thread.
  Status Advance(bool* moved);
  // Byes have come on all connections.
  bool others_left() const;
  // Byes have gone and come on all connections.
  bool closed() const;

 private:
  static constexpr size_t kRoom = 32;
  struct Link {
    int peer;
    std::array<ControlMessage, kRoom> out;  // a ring
    size_t first = 0, count = 0;
    bool ended = false;  // a kBye has been posted
    ControlMessage sending, receiving;
    bool send_busy = false, recv_busy = false, bye_sent = false, bye_received = false;
  };
  Status Send(Link* link, bool* moved);
  Status Receive(Link* link, bool* moved);

  Transport* const transport_;
  const Handler handler_;
  std::mutex mutex_;  // of the rings and `ended`
  std::vector<Link> links_;
};

}  // namespace pp
