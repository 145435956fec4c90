#include "schema/semantics/walk.h"

#include <fmt/format.h>

#include <algorithm>

#include "schema/semantics/sums.h"
#include "schema/text.h"

namespace pp {
namespace {

// How many stages of micro-batches the device has.
int64_t CellsOn(const Program& program, const Placement& placement, int device) {
  int64_t cells = 0;
  for (const Placement::Copy& copy : placement.On(device))
    cells += std::count(program.pipe_of.begin(), program.pipe_of.end(), copy.pipe);
  return cells;
}

// The state of a value on the device.
enum class State : uint8_t { kNone, kFlying, kHere, kSending, kGone };

class Walker {
 public:
  Walker(const Program& program, int device, std::span<const Instruction> list,
         const WalkArgs& args)
      : program_(program),
        device_(device),
        list_(list),
        args_(args),
        sums_(program, *args.placement, device, args.depth, args.bodies) {
    for (const Placement::Copy& copy : args.placement->On(device))
      for (const int32_t stage : {copy.stage, copy.stage - 1})
        if (SlotOf(stage) < 0) {
          const auto at = std::upper_bound(slots_.begin(), slots_.end(), Slot{stage});
          slots_.insert(at, {stage, static_cast<int>(slots_.size())});
        }
    tracks_.assign(kValueNumbers * slots_.size() * program.microbatches, {});
    if (args.waits_for) args.waits_for->assign(list.size(), -1);
  }

  Status Run() {
    const int body = static_cast<int>(list_.size()) / args_.bodies;
    for (index_ = 0; index_ < static_cast<int>(list_.size()); ++index_) {
      if (args_.bodies > 1 && index_ > 0 && index_ % body == 0) PP_RETURN_IF_ERROR(NextBody());
      const Status status = Visit(list_[index_]);
      if (!status.ok()) return At(index_, status);
    }
    return CheckEnd();
  }

 private:
  struct Track {
    int32_t writer = -1;   // index of the instruction that wrote, received or last sent it
    int32_t extent = -1;   // the first of its pieces of memory
    int32_t version = -1;  // stash, input, work: of the weights it was made with
    State state = State::kNone;
  };
  // Of a stage whose values the device has, its own and those that come from the one before.
  struct Slot {
    int32_t stage;
    int number = -1;
    bool operator<(const Slot& other) const { return stage < other.stage; }
  };
  // A piece of memory; a value that takes over others has a chain of them.
  struct Extent {
    int64_t offset, bytes;
    int32_t next;
  };
  Status At(int index, const Status& status) const {
    return Status::Invalid(fmt::format("device {}, '{}' (instruction {}): {}", device_,
                                       ToText(list_[index]), index, status.message()));
  }

  int SlotOf(int stage) const {  // -1: none
    const auto at = std::lower_bound(slots_.begin(), slots_.end(), Slot{stage});
    return at == slots_.end() || at->stage != stage ? -1 : at->number;
  }
  Track& TrackOf(const Value& v) {
    return tracks_[(static_cast<size_t>(v.kind) * slots_.size() + SlotOf(v.stage)) *
                       program_.microbatches +
                   v.micro];
  }
  bool Blocking() const { return program_.p2p == P2p::kBlocking; }
  void WaitsFor(int after) {
    if (args_.waits_for) (*args_.waits_for)[index_] = after;
  }

  // Whether a value is produced and used on this device only.
  bool StaysHere(const Value& v) const {
    if (v.kind != Kind::kAct && v.kind != Kind::kGrad) return true;
    const auto [maker, user] = program_.EndsOf(v);
    return maker == user;
  }

  Status Visit(const Instruction& i) {
    if (program_.evaluates != Evaluates(i) && i.op != Op::kLoad && !IsMessage(i) &&
        !(i.op == Op::kWait && i.value == Kind::kAct))
      return Status::Invalid(program_.evaluates ? "in an evaluation (EVAL, and what it needs)"
                                                : "in a step (an evaluation has it)");
    if (i.op == Op::kWait) return Wait(i);
    if (IsMessage(i)) return Message(i);
    if (Info(i.op).fields.Has(Field::kMicro)) return Compute(i);
    int after = -1;
    PP_RETURN_IF_ERROR(sums_.Visit(i, index_, &after));
    WaitsFor(after);
    return {};
  }

  Status Compute(const Instruction& i) {
    if (const int device = program_.DeviceOf(i.stage, i.micro); device != device_)
      return Status::Invalid(
          fmt::format("stage {} of micro-batch {} is on device {}", i.stage, i.micro, device));
    if (i.op == Op::kLoad && i.stage != 0 && i.stage != program_.stages - 1)
      return Status::Invalid(fmt::format("only stages 0 and {} load", program_.stages - 1));
    if (i.overlap) PP_RETURN_IF_ERROR(CheckOverlap());
    const OpInfo& op = Info(i.op);
    PP_RETURN_IF_ERROR(sums_.CheckVersion(i));
    version_ = sums_.VersionOf(i);
    int32_t kept = -1;  // memory of what was read
    for (const Operand& operand : op.reads) {
      const Value v = Resolve(operand, i, program_.stages);
      if (v.kind == Kind::kNone) continue;
      PP_RETURN_IF_ERROR(Read(v, &kept));
    }
    int slot = 0;
    for (const Operand& operand : op.writes) {
      const Value v = Resolve(operand, i, program_.stages);
      if (v.kind == Kind::kNone || v.kind == Kind::kLoss) continue;
      if (v.kind == Kind::kWgrad) {
        PP_RETURN_IF_ERROR(sums_.AddPart(i, index_));
        continue;
      }
      int32_t last_use = -1;
      PP_RETURN_IF_ERROR(Write(v, State::kHere, &slot, &last_use));
      if (v.kind == op.keeps) Chain(TrackOf(v), &kept);
    }
    Release(kept);
    if (!Evaluates(i)) return {};
    ++evaluated_;
    Track& room = TrackOf({Kind::kStash, i.stage, i.micro});
    room.state = State::kGone;
    Release(std::exchange(room.extent, -1));
    return {};
  }

  static bool Evaluates(const Instruction& i) { return i.op == Op::kEvaluate; }

  // Takes `v`; its memory is prepended to the chain *kept.
  Status Read(const Value& v, int32_t* kept) {
    if (args_.depth == Depth::kSchedule && !StaysHere(v)) return {};
    Track& track = TrackOf(v);
    switch (track.state) {
      case State::kNone:
        return Status::Invalid(fmt::format("reads {}, which nothing has written", ToText(v)));
      case State::kFlying:
        return Status::Invalid(fmt::format("reads {} without a WAIT for it", ToText(v)));
      case State::kSending:
        return Status::Invalid(fmt::format("reads {}, which is being sent", ToText(v)));
      case State::kGone:
        return Status::Invalid(fmt::format("reads {}, which was read before", ToText(v)));
      case State::kHere:
        break;
    }
    if (list_[index_].overlap && overlap_second_ && track.writer == index_ - 1)
      return Status::Invalid(fmt::format("overlaps what makes {}", ToText(v)));
    if (KeepsVersion(v.kind) && track.version != version_)
      return Status::Invalid(
          fmt::format("has weights after {} updates, but {} was made with those after {}", version_,
                      ToText(v), track.version));
    track.state = State::kGone;
    Prepend(track.extent, kept);
    return {};
  }

  // Whether it must be used with the weights that it was made with.
  static bool KeepsVersion(Kind kind) {
    return kind == Kind::kStash || kind == Kind::kInput || kind == Kind::kWork;
  }

  // Two neighbours run as one: the first and the second of a pair, taken from the left.
  Status CheckOverlap() {
    overlap_second_ = index_ > 0 && list_[index_ - 1].overlap && !overlap_second_;
    const bool paired = overlap_second_ ||
                        (index_ + 1 < static_cast<int>(list_.size()) && list_[index_ + 1].overlap);
    if (paired) return {};
    return Status::Invalid("has no neighbour to overlap with");
  }

  Status Write(const Value& v, State state, int* slot, int32_t* last_use) {
    if (args_.depth == Depth::kSchedule && !StaysHere(v)) return {};
    Track& track = TrackOf(v);
    if (track.state != State::kNone)
      return Status::Invalid(fmt::format("writes {} a second time", ToText(v)));
    track.state = state;
    track.writer = index_;
    track.version = version_;
    if (!args_.memory) return {};
    const Op writer = list_[index_].op;
    for (const int64_t bytes : {(*args_.bytes)(v), args_.bytes->SecondPiece(writer, v)}) {
      if (bytes == 0) continue;
      int64_t offset = -1;
      PP_RETURN_IF_ERROR(args_.memory->Take({v, bytes, index_, (*slot)++}, &offset, last_use));
      track.extent = NewExtent({offset, bytes, track.extent});
    }
    return {};
  }

  Status Message(const Instruction& i) {
    const bool send = Info(i.op).lane == Lane::kSend;
    const Value v{KindOfMessage(i.op), i.stage, i.micro};
    if (i.stage + 1 >= program_.stages)
      return Status::Invalid("the last stage's output goes nowhere");
    const auto [maker, user] = program_.EndsOf(v);
    if (maker == user)
      return Status::Invalid(fmt::format("{} stays on device {}", ToText(v), maker));
    if ((send ? maker : user) != device_ || (send ? user : maker) != i.peer)
      return Status::Invalid(
          fmt::format("{} goes from device {} to device {}", ToText(v), maker, user));
    if (!send) {
      int slot = 0;
      int32_t last_use = -1;
      PP_RETURN_IF_ERROR(Write(v, Blocking() ? State::kHere : State::kFlying, &slot, &last_use));
      WaitsFor(last_use);
      return {};
    }
    Track& track = TrackOf(v);
    const int writer = track.writer;
    int32_t kept = -1;
    PP_RETURN_IF_ERROR(Read(v, &kept));
    WaitsFor(writer);
    if (Blocking()) {
      Release(kept);
    } else {
      track.state = State::kSending;
      track.writer = index_;
      track.extent = kept;
    }
    return {};
  }

  Status Wait(const Instruction& i) {
    switch (i.value) {
      case Kind::kAct:
      case Kind::kGrad:
        return WaitMessage(i);
      default: {
        int after = -1;
        PP_RETURN_IF_ERROR(sums_.Wait(i, &after));
        WaitsFor(after);
        return {};
      }
    }
  }

  Status WaitMessage(const Instruction& i) {
    const Value v{i.value, i.stage, i.micro};
    if (args_.depth == Depth::kSchedule) return WaitInSchedule(i, v);
    if (Blocking()) return Status::Invalid("a blocking SEND or RECV needs no WAIT");
    if (SlotOf(i.stage) < 0)
      return Status::Invalid(fmt::format("{} never comes to device {}", ToText(v), device_));
    Track& track = TrackOf(v);
    const State expected = i.sent ? State::kSending : State::kFlying;
    if (track.state != expected)
      return Status::Invalid(
          fmt::format("no {} of {} is under way", i.sent ? "SEND" : "RECV", ToText(v)));
    WaitsFor(track.writer);
    if (i.sent) {
      track.state = State::kGone;
      Release(track.extent);
    } else {
      track.state = State::kHere;
      track.writer = index_;
    }
    return {};
  }

  // A schedule may say where it waits for another device's values; they are simply available.
  Status WaitInSchedule(const Instruction& i, const Value& v) {
    const bool user = v.stage + 1 < program_.stages && !i.sent && !StaysHere(v) &&
                      program_.EndsOf(v).user == device_;
    if (!user)
      return Status::Invalid(
          fmt::format("{} does not come from another device to device {}", ToText(v), device_));
    return {};
  }

  // A plain body leaves nothing over: no sum is left here, and no value, as the end of the list
  // shows.
  Status NextBody() {
    if (program_.evaluates) return {};
    int index = -1;
    const Status status = sums_.NextBody(&index);
    return index >= 0 ? At(index, status) : status;
  }

  // At the end of the list nothing may be left over.
  Status CheckEnd() {
    for (size_t t = 0; t < tracks_.size(); ++t) {
      const Track& track = tracks_[t];
      if (track.state == State::kNone || track.state == State::kGone) continue;
      const char* what = track.state == State::kFlying    ? "is received but never waited for"
                         : track.state == State::kSending ? "is sent but the send never waited for"
                                                          : "is written but never read";
      return At(track.writer, Status::Invalid(fmt::format("{} {}", ToText(ValueAt(t)), what)));
    }
    if (program_.evaluates) {
      if (const int64_t all = CellsOn(program_, *args_.placement, device_); evaluated_ != all)
        return Status::Invalid(
            fmt::format("device {}: {} EVAL (one for each of {} micro-batches "
                        "of its stages)",
                        device_, evaluated_, all));
      return {};
    }
    int index = -1;
    const Status status = sums_.CheckEnd(&index);
    return index >= 0 ? At(index, status) : status;
  }

  Value ValueAt(size_t track) const {
    const size_t micros = program_.microbatches;
    const int number = static_cast<int>(track / micros % slots_.size());
    const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                   [&](const Slot& s) { return s.number == number; });
    return {static_cast<Kind>(track / micros / slots_.size()), slot->stage,
            static_cast<int32_t>(track % micros)};
  }

  int32_t NewExtent(const Extent& extent) {
    if (free_extents_.empty()) {
      extents_.push_back(extent);
      return static_cast<int32_t>(extents_.size() - 1);
    }
    const int32_t at = free_extents_.back();
    free_extents_.pop_back();
    extents_[at] = extent;
    return at;
  }

  // The value of `track` takes over the chain *kept, which is empty afterwards.
  void Chain(Track& track, int32_t* kept) { Prepend(std::exchange(*kept, -1), &track.extent); }
  // Prepends the chain `head` to *kept.
  void Prepend(int32_t head, int32_t* kept) {
    if (head < 0) return;
    int32_t last = head;
    while (extents_[last].next >= 0) last = extents_[last].next;
    extents_[last].next = *kept;
    *kept = head;
  }
  void Release(int32_t head) {
    while (head >= 0) {
      args_.memory->Free(extents_[head].offset, extents_[head].bytes, index_);
      free_extents_.push_back(head);
      head = extents_[head].next;
    }
  }

  const Program& program_;
  const int device_;
  const std::span<const Instruction> list_;
  const WalkArgs& args_;
  std::vector<Slot> slots_;  // ascending by stage
  std::vector<Track> tracks_;
  Sums sums_;
  std::vector<Extent> extents_;
  std::vector<int32_t> free_extents_;
  int index_ = 0;
  int32_t version_ = -1;  // of the weights that the instruction uses
  bool overlap_second_ = false;
  int64_t evaluated_ = 0;
};

}  // namespace

Status WalkList(const Program& program, int device, std::span<const Instruction> list,
                const WalkArgs& args) {
  if (args.placement->On(device).empty())
    return Status::Invalid(fmt::format("device {} holds no stage", device));
  // Every micro-batch takes at least one instruction on each stage. Tables that grow with both are
  // not allocated for a list that cannot be right.
  if (CellsOn(program, *args.placement, device) > static_cast<int64_t>(list.size()) + 4096)
    return Status::Invalid(
        fmt::format("device {}: {} instructions for {} micro-batches (at least one for each on "
                    "each of its stages)",
                    device, list.size(), program.microbatches));
  return Walker(program, device, list, args).Run();
}

}  // namespace pp
