#include "tests/fuzz/mutate.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <sstream>

#include "schema/routines.h"
#include "schema/sections.h"
#include "tests/sample_program.h"

namespace pp {
namespace {

// The number after `old`, if there is one.
template <typename T>
T Next(T old) {
  return old == std::numeric_limits<T>::max() ? old : static_cast<T>(old + 1);
}

// A number near `old`, or an edge.
template <typename T>
T Other(Random& random, T old) {
  constexpr T kEdges[] = {
      -2, -1, 0, 1, 2, 3, 127, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
  switch (random.Below(4)) {
    case 0:
      return Next(old);
    case 1:
      return old == std::numeric_limits<T>::min() ? old : static_cast<T>(old - 1);
    case 2:
      return static_cast<T>(random.Below(4));
    default:
      return kEdges[random.Below(std::size(kEdges))];
  }
}

template <typename Items>
auto& OneOf(Random& random, Items& items) {
  return items[random.Below(items.size())];
}

// Any op, with its fields; those that may be left out are, sometimes.
Instruction AnyInstruction(Random& random, const Program& program, int device) {
  const Limits limits{.stages = program.stages,
                      .micros = program.microbatches,
                      .devices = program.devices,
                      .pipes = static_cast<int32_t>(program.pipes.size()),
                      .buckets = 2,
                      .versions = 3};
  Instruction i;
  i.op = Ops()[random.Below(Ops().size())].op;
  ForEachField([&]<typename T>(const FieldInfo<T>& info) {
    if (!HasField(i, info.field)) return;
    if (info.presence == Presence::kMaybe && random.OneIn(2)) return;
    if constexpr (std::is_same_v<T, Kind>) {
      do i.*info.member = Kinds()[random.Below(Kinds().size())].kind;
      while (!CanWaitFor(i.*info.member));
    } else if constexpr (IsNumber<T>) {
      i.*info.member = static_cast<T>(random.Below(std::max(limits.*info.limit, 1)));
    } else {
      i.*info.member = true;
    }
  });
  if (i.peer == device) i.peer = (device + 1) % std::max(program.devices, 1);
  return i;
}

void MutateInstruction(Random& random, Instruction* i) {
  const int which = random.Below(kFieldCount + 3);
  if (which == kFieldCount) {
    i->op = static_cast<Op>(random.OneIn(8) ? random.Below(256) : 1 + random.Below(Ops().size()));
  } else if (which > kFieldCount) {
    i->offset[random.Below(3)] = Other(random, i->offset[random.Below(3)]);
  }
  int field = 0;
  ForEachField([&]<typename T>(const FieldInfo<T>& info) {
    if (field++ != which) return;
    T& member = i->*info.member;
    if constexpr (std::is_same_v<T, Kind>)
      member = static_cast<Kind>(random.Below(Kinds().size() + 2));
    else if constexpr (IsNumber<T>)
      member = Other(random, member);
    else
      member = !member;
  });
}

// Order, number and places of the instructions of one list.
void MutateList(Random& random, const Program& program, int device,
                std::vector<Instruction>* list) {
  const auto at = [&] { return list->begin() + random.Below(list->size()); };
  if (list->empty() || random.OneIn(6)) {
    list->insert(list->begin() + random.Below(list->size() + 1),
                 AnyInstruction(random, program, device));
    return;
  }
  switch (random.Below(6)) {
    case 0:
      list->erase(at());
      return;
    case 1: {
      const Instruction copy = *at();
      list->insert(at(), copy);
      return;
    }
    case 2:
      std::iter_swap(at(), at());
      return;
    case 3: {
      const auto first = at();
      if (first + 1 != list->end()) std::iter_swap(first, first + 1);
      return;
    }
    case 4:  // a value in another's memory
      at()->offset[random.Below(3)] = at()->offset[random.Below(3)];
      return;
    default:
      MutateInstruction(random, &*at());
  }
}

void MutateRegions(Random& random, DeviceList* list) {
  if (list->regions.empty() || random.OneIn(4)) {
    list->regions.push_back({Kind::kScratch, -1, -1, random.Below(256), random.Below(256)});
    return;
  }
  Region& region = OneOf(random, list->regions);
  switch (random.Below(6)) {
    case 0:
      region.kind = static_cast<Kind>(random.Below(Kinds().size() + 2));
      return;
    case 1:
      region.stage = Other(random, region.stage);
      return;
    case 2:
      region.offset = Other(random, region.offset);
      return;
    case 3:
      region.bytes = Other(random, region.bytes);
      return;
    case 4:
      region.pipe = Other(random, region.pipe);
      return;
    default:
      list->arena_bytes = Other(random, list->arena_bytes);
  }
}

template <typename Table, typename Owner>
void MutateAttribute(Random& random, const Table& table, Owner* owner) {
  int row = random.Below(std::tuple_size_v<Table>);
  ForEachRow(table, [&]<typename T>(const Attribute<Owner, T>& info) {
    T& value = owner->*info.member;
    if (row-- != 0) return;
    if constexpr (std::is_same_v<T, std::string>) {
      value += static_cast<char>(random.Below(256));
    } else if constexpr (std::is_same_v<T, std::vector<OperatorKind>>) {
      // One of them, or all but that one.
      const auto names = info.names.subspan(1);
      const bool others = random.OneIn(2);
      const size_t one = random.Below(names.size());
      std::string text;
      for (size_t i = 0; i < names.size(); ++i)
        if ((i == one) != others) text += (text.empty() ? "" : ",") + std::string(names[i]);
      PP_CHECK(ReadKinds(text, info.names, &value).ok());
    } else if constexpr (std::is_same_v<T, Lora>) {
      constexpr const char* kTargets[] = {"all-linear", "q_proj", "c_attn", "c_proj", "v_proj"};
      const std::string target = kTargets[random.Below(std::size(kTargets))];
      if (value.given() && random.OneIn(4)) {
        value = {};
      } else {
        PP_CHECK(
            ReadLora(fmt::format("r={},alpha=2,{}", 1 + random.Below(4), target), &value).ok());
      }
    } else if constexpr (std::is_same_v<T, BatchRamp>) {
      value.stretches.clear();
      if (!random.OneIn(4)) value.stretches = {{1 + random.Below(3), 0}, {1 + random.Below(3), 1}};
    } else if constexpr (std::is_same_v<T, Shapes>) {
      value.runs.clear();
      for (int run = random.Below(4); run > 0; --run)
        value.runs.push_back({1 + random.Below(3), {1 + random.Below(2), 1 + random.Below(8)}});
    } else if constexpr (std::is_same_v<T, std::optional<CostModel>>) {
      if (value && random.OneIn(4)) return value.reset();
      if (!value) value.emplace();
      PerStage& numbers = *value.*Costs()[random.Below(Costs().size())].member;
      numbers.assign(1 + random.Below(3), random.Below(4));
    } else if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
      if (value.empty() || random.OneIn(8)) value.push_back(1);
      OneOf(random, value) = random.Below(4);
    } else if constexpr (std::is_same_v<T, int32_t>) {
      value = Other(random, value);
    } else {
      value = static_cast<T>(random.Below(info.names.size() + 2));
    }
  });
}

void MutateJob(Random& random, Program* program) {
  if (!program->job || random.OneIn(4)) {
    program->job = program->job ? std::nullopt : AnyProgram(random).job;
    return;
  }
  ModelConfig& m = program->job->model;
  int* numbers[] = {&m.vocab_size, &m.max_positions, &m.hidden_size,
                    &m.layers,     &m.heads,         &m.intermediate_size};
  float* fractions[] = {&m.norm_epsilon, &m.embedding_dropout, &m.attention_dropout,
                        &m.residual_dropout, &m.initializer_range};
  switch (random.Below(4)) {
    case 0:
      MutateAttribute(random, kJobAttributes, &*program->job);
      return;
    case 1:
      *fractions[random.Below(std::size(fractions))] =
          static_cast<float>(random.Below(999)) * 0.003f;
      return;
    case 2:
      m.tied = !m.tied;
      return;
    default: {
      int* number = numbers[random.Below(std::size(numbers))];
      *number = Other(random, *number);
    }
  }
}

// One more, one less, or another name or size of one.
void MutateRoutine(Random& random, Program* program) {
  if (program->routines.empty() || random.OneIn(4)) {
    Routine routine = EvaluationLike(*program);
    if (random.OneIn(2)) routine.name = StepRoutine(routine.microbatches = 1 + random.Below(3));
    std::vector<std::vector<Instruction>> lists;
    for (const DeviceList& list : program->lists) lists.push_back(list.body);
    return AddRoutine(std::move(routine), std::move(lists), program);
  }
  Routine& routine = OneOf(random, program->routines);
  switch (random.Below(4)) {
    case 0:
      return DropRoutine(std::string(routine.name), program);
    case 1:
      routine.name += static_cast<char>(random.Below(256));
      return;
    case 2:
      routine.microbatches = Other(random, routine.microbatches);
      return;
    default:
      if (!routine.pipe_of.empty()) routine.pipe_of.pop_back();
  }
}

// Sizes and placement.
void MutateShape(Random& random, Program* program) {
  const auto resize = [&](std::vector<int32_t>& numbers) {
    numbers.resize(random.Below(numbers.size() + 3), 0);
  };
  switch (random.Below(12)) {
    case 8:
      return MutateRoutine(random, program);
    case 0:
      program->scheme += static_cast<char>(random.Below(256));
      return;
    case 1:
      if (!program->pipe_of.empty()) {
        int32_t& pipe = OneOf(random, program->pipe_of);
        pipe = Other(random, pipe);
      }
      return;
    case 2:
      if (!program->pipes.empty() && !program->pipes[0].device_of.empty()) {
        int32_t& device = OneOf(random, OneOf(random, program->pipes).device_of);
        device = Other(random, device);
      }
      return;
    case 3:
      program->pipes.push_back(program->pipes.empty() ? Pipe{} : program->pipes[0]);
      return;
    case 4:
      resize(program->pipe_of);
      program->microbatches = static_cast<int32_t>(program->pipe_of.size());
      return;
    case 5:
      for (Pipe& pipe : program->pipes) pipe.device_of.push_back(0);
      program->stages = Next(program->stages);
      return;
    case 6:
      program->lists.emplace_back().routines.resize(program->routines.size());
      program->devices = Next(program->devices);
      return;
    case 7:
      program->stages = Other(random, program->stages);
      return;
    default:
      MutateAttribute(random, kProgramAttributes<Program>, program);
  }
}

// The forwards of a micro-batch belong to the next step.
void OverlapSteps(Random& random, Program* program) {
  const int32_t micro = random.Below(std::max(program->microbatches, 1));
  for (DeviceList& list : program->lists)
    for (Instruction& i : list.body) {
      const bool forward = i.op == Op::kLoad || i.op == Op::kForward || i.op == Op::kForwardDrop ||
                           i.op == Op::kSendAct || i.op == Op::kRecvAct || i.value == Kind::kAct;
      if (forward && i.micro == micro && i.micro <= INT32_MAX - program->microbatches)
        i.micro += program->microbatches;
    }
  program->overlaps = !random.OneIn(8);
}

}  // namespace

Program AnyProgram(Random& random) {
  SampleArgs args;
  args.devices = random.OneIn(16) ? 4 : 1 + random.Below(3);
  args.stages_per_device = 1 + random.Below(2);
  args.microbatches = 1 + random.Below(3);
  args.backward = static_cast<SampleBackward>(random.Below(3));
  args.model = random.OneIn(3);
  const int stages = args.devices * args.stages_per_device;
  if (!args.model && stages > 1 && random.OneIn(3))
    args.tied = {random.Below(stages - 1), stages - 1};
  if (args.stages_per_device == 1) {
    if (random.OneIn(3)) args.p2p = P2p::kBlocking;
    if (args.p2p == P2p::kAsync && args.devices % 2 == 0 && random.OneIn(2)) args.pipes = 2;
    if (args.p2p == P2p::kAsync && random.OneIn(3)) args.replicas = 2;
    args.zero = random.Below(2);
    args.one_f_one_b = args.p2p == P2p::kAsync && args.pipes == 1 && random.OneIn(2);
  }
  Program program = SampleProgram(args);
  if (args.microbatches > 1 && args.pipes == 1 && random.OneIn(3)) {
    args.microbatches = 1;
    std::vector<std::vector<Instruction>> lists;
    for (DeviceList& list : SampleProgram(args).lists) lists.push_back(std::move(list.body));
    AddRoutine({StepRoutine(1), 1, {0}}, std::move(lists), &program);
    program.ramp = {{{1, 0}, {program.microbatches, 1}}};
    GiveMemory(&program);
  }
  if (random.OneIn(3)) program.rank_order = RankOrder::kTpDpPp;
  return program;
}

void Mutate(Random& random, Program* program) {
  if (program->lists.empty() || random.OneIn(50)) {
    *program = AnyProgram(random);
    return;
  }
  const int device = random.Below(program->lists.size());
  DeviceList& list = program->lists[device];
  switch (random.Below(24)) {
    case 0:
      return MutateShape(random, program);
    case 1:
      return MutateJob(random, program);
    case 2:
      return MutateRegions(random, &list);
    case 3:
      program->overlaps = !program->overlaps;
      return;
    case 4: {  // an instruction moves to another device
      if (list.body.empty()) return;
      const auto from = list.body.begin() + random.Below(list.body.size());
      const Instruction moved = *from;
      list.body.erase(from);
      auto& to = OneOf(random, program->lists).body;
      to.insert(to.begin() + random.Below(to.size() + 1), moved);
      return;
    }
    case 5:
      return OverlapSteps(random, program);
    default:
      return MutateList(
          random, *program, device,
          list.routines.empty() || !random.OneIn(4) ? &list.body : &OneOf(random, list.routines));
  }
}

static std::vector<std::string> WordsOfTheTextForm() {
  std::istringstream words(
      "program stages microbatches passes p2p blocking async model batch sequence layers pipe "
      "micro-batches on pipes device holds prologue evaluation body epilogue sent overlap replicas "
      "zero weights v0 v1 to from act grad wgrad tied norm s0 m0 d1 b0 p1 0 1 2147483647 "
      "2147483648 "
      "-1 # {");
  std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
  all.insert(all.end(), {"\t", ""});
  return all;
}

void Mutate(Random& random, std::string* text) {
  static const std::vector<std::string> kWords = WordsOfTheTextForm();
  std::vector<std::string> lines;
  std::istringstream in(*text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  if (lines.empty()) lines.emplace_back("program x stages 1 microbatches 1");
  std::string& line = OneOf(random, lines);
  switch (random.Below(6)) {
    case 0:
      lines.erase(lines.begin() + random.Below(lines.size()));
      break;
    case 1:
      lines.insert(lines.begin() + random.Below(lines.size()), std::string(line));
      break;
    case 2:
      std::swap(line, OneOf(random, lines));
      break;
    default: {
      std::istringstream words(line);
      std::vector<std::string> parts{std::istream_iterator<std::string>(words), {}};
      if (parts.empty()) parts.emplace_back();
      if (random.OneIn(3)) {
        const std::string op(Ops()[random.Below(Ops().size())].text);
        parts.insert(parts.begin() + random.Below(parts.size() + 1),
                     random.OneIn(4) ? op : OneOf(random, kWords));
      } else if (std::string& word = OneOf(random, parts); random.OneIn(2) || word.empty()) {
        word = OneOf(random, kWords);
      } else {
        word.back() = static_cast<char>('0' + random.Below(10));
      }
      line.clear();
      for (const std::string& part : parts) line += part + " ";
    }
  }
  text->clear();
  for (const std::string& each : lines) *text += each + "\n";
}

}  // namespace pp
