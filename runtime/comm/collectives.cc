#include "runtime/comm/collectives.h"

#include <algorithm>

#include "runtime/plan/binding.h"

namespace pp {

TiedSum::TiedSum(const Program& program, int device, const Arena& arena, Transport* transport)
    : transport_(transport) {
  const int last = program.stages - 1;
  const StageLayout first_layout = LayoutStage(*program.job, 0);
  const StageLayout last_layout = LayoutStage(*program.job, last);
  if (first_layout.tied_lookup < 0) return;  // nothing is tied
  auto part = [&](int stage, int64_t offset) {
    std::byte* wgrad = BindStage(program, device, stage, arena).wgrad;
    return reinterpret_cast<float*>(wgrad + offset);
  };
  count_ = first_layout.tied_bytes / static_cast<int64_t>(sizeof(float));
  const int first_device = program.pipes[0].device_of[0];
  const int last_device = program.pipes[0].device_of[last];
  if (device == first_device) mine_ = part(0, first_layout.tied_lookup);
  if (device == last_device) {
    float* head = part(last, last_layout.tied_head);
    (device == first_device ? other_ : mine_) = head;
  }
  if (first_device == last_device || mine_ == nullptr) return;
  peer_ = device == first_device ? last_device : first_device;
  const Region* exchange = FindRegion(program.lists[device], Kind::kExchange, -1);
  PP_CHECK(exchange != nullptr && exchange->bytes >= static_cast<int64_t>(sizeof(float)));
  receive_ = reinterpret_cast<float*>(arena.at(exchange->offset));
  piece_ = std::min(count_, exchange->bytes / static_cast<int64_t>(sizeof(float)));
}

Status TiedSum::Start() {
  done_ = 0;
  if (peer_ >= 0) return StartPiece();
  // Both sums are read by the STEP of their own stage.
  for (int64_t i = 0; i < count_; ++i) other_[i] = mine_[i] += other_[i];
  return {};
}

Status TiedSum::StartPiece() {
  const int64_t bytes = std::min(piece_, count_ - done_) * static_cast<int64_t>(sizeof(float));
  sending_ = receiving_ = true;
  PP_RETURN_IF_ERROR(transport_->Start({Way::kRecv, Channel::kReduce, peer_}, receive_, bytes));
  return transport_->Start({Way::kSend, Channel::kReduce, peer_}, mine_ + done_, bytes);
}

Status TiedSum::Test(bool* over) {
  *over = peer_ < 0;
  if (*over) return {};
  auto test = [&](Way way, bool* busy) -> Status {
    if (!*busy) return {};
    bool finished = false;
    PP_RETURN_IF_ERROR(transport_->Test({way, Channel::kReduce, peer_}, &finished));
    *busy = !finished;
    return {};
  };
  PP_RETURN_IF_ERROR(test(Way::kRecv, &receiving_));
  PP_RETURN_IF_ERROR(test(Way::kSend, &sending_));
  if (sending_ || receiving_) return {};
  // Two numbers have the same sum in either order, so this is look-up plus head on both.
  const int64_t count = std::min(piece_, count_ - done_);
  for (int64_t i = 0; i < count; ++i) mine_[done_ + i] += receive_[i];
  done_ += count;
  *over = done_ == count_;
  return *over ? Status() : StartPiece();
}

NormGather::NormGather(const Program& program, int device, const Arena& arena, Transport* transport)
    : transport_(transport), parts_(program.devices) {
  const Region* norm = FindRegion(program.lists[device], Kind::kNorm, -1);
  if (norm == nullptr) return;
  auto* blocks = reinterpret_cast<double*>(arena.at(norm->offset));
  for (int stage = 0; stage < program.stages; ++stage) {
    const StageLayout layout = LayoutStage(*program.job, stage);
    parts_[program.pipes[0].device_of[stage]].push_back(
        {blocks + layout.first_norm_block,
         layout.norm_blocks * static_cast<int64_t>(sizeof(double))});
  }
  for (int peer = 0; peer < program.devices; ++peer) {
    if (peer == device) continue;
    streams_.push_back({{Way::kRecv, Channel::kReduce, peer}, &parts_[peer], 0, false});
    streams_.push_back({{Way::kSend, Channel::kReduce, peer}, &parts_[device], 0, false});
  }
}

Status NormGather::Start() {
  for (Stream& stream : streams_) stream.next = 0;
  return {};
}

Status NormGather::Test(bool* over) {
  *over = true;
  for (Stream& stream : streams_) {
    while (stream.busy || stream.next < stream.parts->size()) {
      if (!stream.busy) {
        const Part& part = (*stream.parts)[stream.next];
        PP_RETURN_IF_ERROR(transport_->Start(stream.port, part.blocks, part.bytes));
        stream.busy = true;
      }
      bool finished = false;
      PP_RETURN_IF_ERROR(transport_->Test(stream.port, &finished));
      if (!finished) {
        *over = false;
        break;
      }
      stream.busy = false;
      ++stream.next;
    }
  }
  return {};
}

}  // namespace pp
