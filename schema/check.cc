#include "schema/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>

namespace pp {
namespace {

template <typename... Args>
Status Wrong(fmt::format_string<Args...> format, Args&&... args) {
  return Status::Invalid(fmt::format(format, std::forward<Args>(args)...));
}

struct Range {
  int64_t low = -1, high = -1;
  bool Has(int64_t number) const { return number >= low && number <= high; }
};

// The fields that are numbers with a range.
struct FieldRow {
  Field field;
  std::string_view text;
  int32_t (*get)(const Instruction&);
};
constexpr FieldRow kFields[] = {
    {Field::kStage, "stage", [](const Instruction& i) { return i.stage; }},
    {Field::kMicro, "micro-batch", [](const Instruction& i) { return i.micro; }},
    {Field::kPeer, "peer", [](const Instruction& i) { return i.peer; }},
    {Field::kBucket, "bucket", [](const Instruction& i) -> int32_t { return i.bucket; }},
    {Field::kPipe, "pipe", [](const Instruction& i) -> int32_t { return i.pipe; }},
    {Field::kVersion, "version", [](const Instruction& i) -> int32_t { return i.version; }},
};

// The legal values of an instruction's field. {-1, -1}: it does not have that field.
struct Rule {
  bool known = false;
  bool may_be_sent = false;
  bool may_overlap = false;
  std::array<Range, std::size(kFields)> ranges;
};

Range RangeOf(const Program& program, Field field) {
  switch (field) {
    case Field::kStage:
      return {0, program.stages - 1};
    case Field::kMicro:
      // The second half only if steps overlap; ListCheck knows.
      return {0, int64_t{2} * program.microbatches - 1};
    case Field::kPeer:
      return {0, program.devices - 1};
    case Field::kBucket:
      return {0, INT16_MAX - 1};
    case Field::kPipe:
      return {-1, static_cast<int64_t>(program.pipes.size()) - 1};
    case Field::kVersion:
      return {-1, INT16_MAX - 1};
    case Field::kValue:
    case Field::kSent:
    case Field::kOverlap:
      break;
  }
  return {};
}

Rule RuleOf(const Program& program, const Instruction& instruction) {
  Rule rule;
  rule.known = true;
  rule.may_be_sent = HasField(instruction, Field::kSent);
  rule.may_overlap = HasField(instruction, Field::kOverlap);
  for (size_t f = 0; f < rule.ranges.size(); ++f) {
    const Field field = kFields[f].field;
    if (HasField(instruction, field)) rule.ranges[f] = RangeOf(program, field);
  }
  return rule;
}

// The rules of one program, by op and, for a WAIT, by what it waits for.
class Rules {
 public:
  explicit Rules(const Program& program) {
    for (const OpInfo& op : Ops()) {
      if (op.op != Op::kWait) ops_[static_cast<uint8_t>(op.op)] = RuleOf(program, {.op = op.op});
    }
    for (const KindInfo& kind : Kinds()) {
      if (!CanWaitFor(kind.kind)) continue;
      waits_[static_cast<uint8_t>(kind.kind)] =
          RuleOf(program, {.op = Op::kWait, .value = kind.kind});
    }
  }

  const Rule& Find(const Instruction& i) const {
    return i.op == Op::kWait ? waits_[static_cast<uint8_t>(i.value)]
                             : ops_[static_cast<uint8_t>(i.op)];
  }

 private:
  std::array<Rule, 256> ops_, waits_;
};

// One device's lists.
class ListCheck {
 public:
  ListCheck(const Program& program, const Rules& rules, int device)
      : list_(program.lists[device]),
        rules_(rules),
        device_(device),
        stages_(program.stages),
        pipes_(static_cast<int32_t>(program.pipes.size())),
        micros_(program.microbatches),
        body_micros_(int64_t{program.microbatches} *
                     (list_.prologue.empty() && list_.epilogue.empty() ? 1 : 2)) {}

  Status Run() const {
    constexpr int64_t kMostArena = int64_t{1} << 62;
    if (list_.arena_bytes < 0 || list_.arena_bytes >= kMostArena) {
      return Wrong("device {}: an arena of {} bytes (0 to 2^62)", device_, list_.arena_bytes);
    }
    for (size_t i = 0; i < list_.regions.size(); ++i) PP_RETURN_IF_ERROR(CheckRegion(i));
    PP_RETURN_IF_ERROR(CheckSection("prologue ", list_.prologue, micros_));
    PP_RETURN_IF_ERROR(CheckSection("", list_.body, body_micros_));
    PP_RETURN_IF_ERROR(CheckSection("epilogue ", list_.epilogue, micros_));
    return CheckSection("evaluation ", list_.evaluation, micros_);
  }

 private:
  Status CheckRegion(size_t index) const {
    const Region& r = list_.regions[index];
    if (FindKind(static_cast<int>(r.kind)) == nullptr) {
      return Wrong("device {}, region {}: unknown kind of value {} (1 to {})", device_, index,
                   static_cast<int>(r.kind), Kinds().size());
    }
    if (r.stage < -1 || r.stage >= stages_) {
      return Wrong("device {}, region {}: stage {} (0 to {}, or -1)", device_, index, r.stage,
                   stages_ - 1);
    }
    if (r.pipe < -1 || r.pipe >= pipes_) {
      return Wrong("device {}, region {}: pipe {} (0 to {}, or -1)", device_, index, r.pipe,
                   pipes_ - 1);
    }
    if (r.offset < 0 || r.bytes < 0 || r.offset > list_.arena_bytes ||
        r.bytes > list_.arena_bytes - r.offset) {
      return Wrong("device {}, region {}: {} bytes at {} (inside the arena of {})", device_, index,
                   r.bytes, r.offset, list_.arena_bytes);
    }
    return {};
  }

  Status CheckSection(const char* section, const std::vector<Instruction>& list,
                      int64_t micros) const {
    for (size_t i = 0; i < list.size(); ++i) {
      if (IsRight(list[i], micros)) continue;
      return Explain(list[i], micros)
          .In(fmt::format("device {}, {}instruction {}", device_, section, i));
    }
    return {};
  }

  // The same conditions as in Explain, in a form that takes only a few nanoseconds.
  bool IsRight(const Instruction& i, int64_t micros) const {
    const Rule& rule = rules_.Find(i);
    bool right = rule.known && (!i.sent || rule.may_be_sent) && (!i.overlap || rule.may_overlap) &&
                 i.peer != device_ && (i.value == Kind::kNone || i.op == Op::kWait);
    for (size_t f = 0; f < std::size(kFields); ++f) {
      right &= rule.ranges[f].Has(kFields[f].get(i));
    }
    right &= i.micro < micros;
    for (int64_t offset : i.offset) right &= offset >= -1 && offset <= list_.arena_bytes;
    return right;
  }

  Status Explain(const Instruction& i, int64_t micros) const {
    if (FindOp(static_cast<int>(i.op)) == nullptr) {
      return Wrong("unknown op {} (1 to {})", static_cast<int>(i.op), Ops().size());
    }
    const Rule& rule = rules_.Find(i);
    const std::string_view op = Info(i.op).text;
    if (!rule.known) {
      return Wrong("{} for kind of value {} (act, grad, wgrad, tied, norm or weights)", op,
                   static_cast<int>(i.value));
    }
    if (i.value != Kind::kNone && i.op != Op::kWait) {
      return Wrong("{} with value {} (it has none)", op, static_cast<int>(i.value));
    }
    if (i.sent && !rule.may_be_sent) return Wrong("{} with 'sent' (it is for messages)", op);
    if (i.overlap && !rule.may_overlap) return Wrong("{} with 'overlap' (it cannot)", op);
    for (size_t f = 0; f < std::size(kFields); ++f) {
      Range range = rule.ranges[f];
      if (kFields[f].field == Field::kMicro) range.high = std::min(range.high, micros - 1);
      const int32_t number = kFields[f].get(i);
      if (range.Has(number)) continue;
      if (range.high == -1)
        return Wrong("{} with {} {} (it has none)", op, kFields[f].text, number);
      return Wrong("{} {} ({} to {})", kFields[f].text, number, std::max<int64_t>(0, range.low),
                   range.high);
    }
    if (i.peer == device_) return Wrong("peer {} is the device itself (another one)", i.peer);
    for (const int64_t offset : i.offset)
      if (offset < -1 || offset > list_.arena_bytes)
        return Wrong("offset {} (inside the arena of {} bytes, or -1)", offset, list_.arena_bytes);
    return {};
  }

  const DeviceList& list_;
  const Rules& rules_;
  const int device_;
  const int32_t stages_, pipes_;
  const int64_t micros_, body_micros_;  // a body has those of the next step, too, if steps overlap
};

// A word of the text form.
Status CheckWord(const char* what, const std::string& word) {
  const auto stray = [](char c) { return c <= ' ' || c > '~' || c == '#'; };
  if (std::none_of(word.begin(), word.end(), stray)) return {};
  return Wrong("the name of the {} is not a word (printable, without space and #)", what);
}

Status CheckCount(const char* what, int32_t count) {
  if (count >= 1 && count <= kMostCount) return {};
  return Wrong("{} {} (1 to {})", count, what, kMostCount);
}

Status CheckNumbers(const std::string& what, const std::vector<int32_t>& numbers, int32_t count,
                    size_t limit) {
  if (numbers.size() != static_cast<size_t>(count)) {
    return Wrong("{} has {} numbers ({})", what, numbers.size(), count);
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] >= 0 && static_cast<size_t>(numbers[i]) < limit) continue;
    return Wrong("{}: number {} is {} (0 to {})", what, i, numbers[i], limit - 1);
  }
  return {};
}

}  // namespace

Status CheckPipes(const Program& program) {
  std::map<std::pair<int32_t, int32_t>, size_t> pipe_of;  // stage and device -> pipe
  for (size_t pipe = 0; pipe < program.pipes.size() && program.pipes.size() > 1; ++pipe)
    for (int32_t stage = 0; stage < program.stages; ++stage) {
      const int32_t device = program.pipes[pipe].device_of[stage];
      const auto [other, is_new] = pipe_of.try_emplace({stage, device}, pipe);
      if (!is_new)
        return Wrong(
            "pipes {} and {} both place stage {} on device {} (a device holds a stage once)",
            other->second, pipe, stage, device);
    }
  return {};
}

namespace {

Status CheckHead(const Program& p) {
  PP_RETURN_IF_ERROR(CheckWord("scheme", p.scheme));
  PP_RETURN_IF_ERROR(CheckWord("passes", p.passes));
  if (p.scheme.empty()) return Wrong("no scheme (its name)");
  if (p.p2p != P2p::kAsync && p.p2p != P2p::kBlocking) {
    return Wrong("p2p {} (0, async, or 1, blocking)", static_cast<int>(p.p2p));
  }
  PP_RETURN_IF_ERROR(CheckCount("devices", p.devices));
  PP_RETURN_IF_ERROR(CheckCount("stages", p.stages));
  PP_RETURN_IF_ERROR(CheckCount("micro-batches", p.microbatches));
  if (p.lists.size() != static_cast<size_t>(p.devices)) {
    return Wrong("{} lists for {} devices (one per device)", p.lists.size(), p.devices);
  }
  if (p.pipes.empty() || p.pipes.size() > INT16_MAX) {
    return Wrong("{} pipes (1 to {})", p.pipes.size(), INT16_MAX);
  }
  for (size_t i = 0; i < p.pipes.size(); ++i) {
    PP_RETURN_IF_ERROR(CheckNumbers(fmt::format("device_of of pipe {}", i), p.pipes[i].device_of,
                                    p.stages, p.devices));
  }
  PP_RETURN_IF_ERROR(CheckPipes(p));
  PP_RETURN_IF_ERROR(CheckNumbers("pipe_of", p.pipe_of, p.microbatches, p.pipes.size()));
  PP_RETURN_IF_ERROR(CheckCount("replicas", p.replicas));
  if (p.zero != 0 && p.zero != 1) return Wrong("zero {} (0 or 1)", p.zero);
  if (!p.job) return {};
  PP_RETURN_IF_ERROR(
      CheckNumbers("layers_per_stage", p.job->layers_per_stage, p.stages, size_t{INT32_MAX} + 1));
  return CheckJob(*p.job);
}

}  // namespace

Status CheckFields(const Program& program) {
  PP_RETURN_IF_ERROR(CheckHead(program));
  const auto rules = std::make_unique<Rules>(program);  // 45 KB, not for the stack
  for (int d = 0; d < program.devices; ++d) {
    PP_RETURN_IF_ERROR(ListCheck(program, *rules, d).Run());
  }
  return {};
}

}  // namespace pp
