#include "schema/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "schema/routines.h"

namespace pp {
namespace {

template <typename... Args>
Status Wrong(fmt::format_string<Args...> format, Args&&... args) {
  return Status::Invalid(fmt::format(format, std::forward<Args>(args)...));
}

// One device's lists.
class ListCheck {
 public:
  ListCheck(const Program& program, int device)
      : list_(program.lists[device]),
        routines_(program.routines),
        overlaps_(program.overlaps),
        device_(device),
        limits_{.stages = program.stages,
                .micros = program.microbatches,
                .devices = program.devices,
                .pipes = static_cast<int32_t>(program.pipes.size())} {}

  Status Run() const {
    constexpr int64_t kMostArena = int64_t{1} << 62;
    if (list_.arena_bytes < 0 || list_.arena_bytes >= kMostArena) {
      return Wrong("device {}: an arena of {} bytes (0 to 2^62)", device_, list_.arena_bytes);
    }
    for (size_t i = 0; i < list_.regions.size(); ++i) PP_RETURN_IF_ERROR(CheckRegion(i));
    Limits body = limits_;  // it has micro-batches of the next step, too, if steps overlap
    if (overlaps_) body.micros *= 2;
    PP_RETURN_IF_ERROR(CheckSection("", list_.body, body));
    if (list_.routines.size() != routines_.size())
      return Wrong("device {}: lists of {} routines ({})", device_, list_.routines.size(),
                   routines_.size());
    for (size_t r = 0; r < routines_.size(); ++r) {
      Limits limits = limits_;
      limits.micros = routines_[r].microbatches;
      PP_RETURN_IF_ERROR(CheckSection(routines_[r].name + " ", list_.routines[r], limits));
    }
    return {};
  }

 private:
  Status CheckRegion(size_t index) const {
    const Region& r = list_.regions[index];
    if (FindKind(static_cast<int>(r.kind)) == nullptr) {
      return Wrong("device {}, region {}: unknown kind of value {} (1 to {})", device_, index,
                   static_cast<int>(r.kind), Kinds().size());
    }
    if (r.stage < -1 || r.stage >= limits_.stages) {
      return Wrong("device {}, region {}: stage {} (0 to {}, or -1)", device_, index, r.stage,
                   limits_.stages - 1);
    }
    if (r.pipe < -1 || r.pipe >= limits_.pipes) {
      return Wrong("device {}, region {}: pipe {} (0 to {}, or -1)", device_, index, r.pipe,
                   limits_.pipes - 1);
    }
    if (r.offset < 0 || r.bytes < 0 || r.offset > list_.arena_bytes ||
        r.bytes > list_.arena_bytes - r.offset) {
      return Wrong("device {}, region {}: {} bytes at {} (inside the arena of {})", device_, index,
                   r.bytes, r.offset, list_.arena_bytes);
    }
    return {};
  }

  Status CheckSection(const std::string& section, const std::vector<Instruction>& list,
                      const Limits& limits) const {
    for (size_t i = 0; i < list.size(); ++i) {
      if (IsRight(list[i], limits)) continue;
      return Explain(list[i], limits)
          .In(fmt::format("device {}, {}instruction {}", device_, section, i));
    }
    return {};
  }

  // Whether an instruction has the field exactly where its op has it, and in its range.
  template <typename T>
  static bool IsRight(const Instruction& i, const FieldInfo<T>& info, FieldSet has,
                      const Limits& limits) {
    const T value = i.*info.member;
    if (!has.Has(info.field)) return !IsSet(i, info);
    if constexpr (std::is_same_v<T, Kind>) return CanWaitFor(value);
    if constexpr (IsNumber<T>)
      return value >= (info.presence == Presence::kMaybe ? -1 : 0) && value < limits.*info.limit;
    return true;
  }

  // The same conditions as in Explain, in a form that takes only a few nanoseconds.
  bool IsRight(const Instruction& i, const Limits& limits) const {
    const FieldSet has = FieldsOf(i);
    bool right = FindOp(static_cast<int>(i.op)) != nullptr && i.peer != device_;
    right &= AllFields([&](const auto& info) { return IsRight(i, info, has, limits); });
    for (int64_t offset : i.offset) right &= offset >= -1 && offset <= list_.arena_bytes;
    return right;
  }

  // What is wrong with a field that is not right.
  template <typename T>
  static Status Explain(const Instruction& i, const FieldInfo<T>& info, FieldSet has,
                        const Limits& limits) {
    const std::string_view op = Info(i.op).text;
    if constexpr (std::is_same_v<T, bool>) {
      return Wrong("{} with '{}' (it has none)", op, info.name);
    } else {
      const auto number = static_cast<int64_t>(i.*info.member);
      if (!has.Has(info.field)) return Wrong("{} with {} {} (it has none)", op, info.name, number);
      if constexpr (std::is_same_v<T, Kind>)
        return Wrong("{} for kind of value {} ({})", op, number, KindsToWaitFor());
      else
        return Wrong("{} {} (0 to {})", info.name, number, limits.*info.limit - 1);
    }
  }

  Status Explain(const Instruction& i, const Limits& limits) const {
    if (FindOp(static_cast<int>(i.op)) == nullptr) {
      return Wrong("unknown op {} (1 to {})", static_cast<int>(i.op), Ops().size());
    }
    const FieldSet has = FieldsOf(i);
    Status wrong;
    ForEachField([&](const auto& info) {
      if (wrong.ok() && !IsRight(i, info, has, limits)) wrong = Explain(i, info, has, limits);
    });
    PP_RETURN_IF_ERROR(wrong);
    if (i.peer == device_) return Wrong("peer {} is the device itself (another one)", i.peer);
    for (const int64_t offset : i.offset)
      if (offset < -1 || offset > list_.arena_bytes)
        return Wrong("offset {} (inside the arena of {} bytes, or -1)", offset, list_.arena_bytes);
    return {};
  }

  const DeviceList& list_;
  const std::vector<Routine>& routines_;
  const bool overlaps_;
  const int device_;
  const Limits limits_;
};

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

Status CheckWord(const char* what, const std::string& word) {
  const auto stray = [](char c) { return c <= ' ' || c > '~' || c == '#'; };
  if (std::none_of(word.begin(), word.end(), stray)) return {};
  return Wrong("the name of the {} is not a word: '{}' (printable, without space and #)", what,
               Shown(word));
}

Status CheckRoutine(const Program& program, const Routine& routine,
                    std::span<const Routine> others) {
  if (others.size() >= kMostRoutines) return Wrong("more than {} routines", kMostRoutines);
  PP_RETURN_IF_ERROR(CheckCount("micro-batches", routine.microbatches));
  const std::string& name = routine.name;
  const int32_t size = routine.microbatches;
  const bool evaluates = Evaluates(routine) && size == program.microbatches;
  const bool steps = name == StepRoutine(size) && size < program.microbatches && !program.overlaps;
  if (!evaluates && !steps)
    return Wrong(
        "routine '{}' of {} micro-batches (evaluation, of the {} of a step; or step-M of M, fewer "
        "than "
        "those, where steps do not overlap)",
        Shown(name), size, program.microbatches);
  for (const Routine& other : others)
    if (other.name == name) return Wrong("two routines '{}' (one)", name);
  return {};
}

Status CheckPipeOf(const Program& program, const Routine& routine) {
  return CheckNumbers("pipe_of", routine.pipe_of, routine.microbatches, program.pipes.size());
}

bool CanBeTied(const std::vector<int32_t>& tied, int32_t stages) {
  return tied.size() > 1 && tied.front() >= 0 && tied.back() < stages &&
         std::adjacent_find(tied.begin(), tied.end(), std::greater_equal<>()) == tied.end();
}

Status CheckTied(const Program& program) {
  if (program.tied.empty()) return {};
  const std::string given = Shown(fmt::format("tied {}", fmt::join(program.tied, " ")));
  if (program.job) return Wrong("'{}' beside a model (which says it itself)", given);
  if (CanBeTied(program.tied, program.stages)) return {};
  return Wrong("'{}' (two or more of the stages 0 to {}, ascending)", given, program.stages - 1);
}

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

Status CheckRamp(const Program& program) {
  const std::vector<int32_t> sizes = StepSizes(program);
  for (const auto& [microbatches, from] : program.ramp.stretches)
    if (!std::binary_search(sizes.begin(), sizes.end(), microbatches))
      return Wrong("batch-ramp {}: no routine '{}' (of {} micro-batches)", TextOf(program.ramp),
                   StepRoutine(microbatches), fmt::join(sizes, ", "));
  return {};
}

Status CheckShapes(const Program& program) {
  if (!program.job || !program.job->shapes.given()) return {};
  const Shapes& shapes = program.job->shapes;
  if (program.overlaps)
    return Wrong("--shapes: '{}', but steps overlap (where they do not)", TextOf(shapes));
  if (program.ramp.given())
    return Wrong("--shapes: '{}' beside --batch-ramp (one of the two)", TextOf(shapes));
  for (const Routine& routine : program.routines)
    if (!Evaluates(routine))
      return Wrong("--shapes: '{}' beside routine '{}' (one of the two)", TextOf(shapes),
                   Shown(routine.name));
  if (shapes.microbatches() != program.microbatches)
    return Wrong("--shapes: '{}' has {} micro-batches (the plan's {})", TextOf(shapes),
                 shapes.microbatches(), program.microbatches);
  return {};
}

namespace {

Status CheckHead(const Program& p) {
  PP_RETURN_IF_ERROR(CheckWord("scheme", p.scheme));
  PP_RETURN_IF_ERROR(CheckWord("passes", p.passes));
  if (p.scheme.empty()) return Wrong("no scheme (its name)");
  PP_RETURN_IF_ERROR(CheckAttributes(kProgramAttributes<Program>, p));
  PP_RETURN_IF_ERROR(CheckCount("devices", p.devices));
  PP_RETURN_IF_ERROR(CheckCount("stages", p.stages));
  PP_RETURN_IF_ERROR(CheckCount("micro-batches", p.microbatches));
  if (p.costs) PP_RETURN_IF_ERROR(CheckCosts(*p.costs, p.stages, p.shapes()).In("costs"));
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
  PP_RETURN_IF_ERROR(CheckTied(p));
  PP_RETURN_IF_ERROR(CheckNumbers("pipe_of", p.pipe_of, p.microbatches, p.pipes.size()));
  for (size_t r = 0; r < p.routines.size(); ++r) {
    PP_RETURN_IF_ERROR(CheckRoutine(p, p.routines[r], std::span(p.routines).first(r)));
    PP_RETURN_IF_ERROR(CheckPipeOf(p, p.routines[r]).In(fmt::format("routine {}", r)));
  }
  PP_RETURN_IF_ERROR(CheckRamp(p));
  PP_RETURN_IF_ERROR(CheckShapes(p));
  if (!p.job) return {};
  PP_RETURN_IF_ERROR(
      CheckNumbers("layers_per_stage", p.job->layers_per_stage, p.stages, size_t{INT32_MAX} + 1));
  return CheckJob(*p.job);
}

}  // namespace

Status CheckFields(const Program& program) {
  PP_RETURN_IF_ERROR(CheckHead(program));
  for (int d = 0; d < program.devices; ++d) PP_RETURN_IF_ERROR(ListCheck(program, d).Run());
  return {};
}

}  // namespace pp
