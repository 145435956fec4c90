// Program => FlatBuffer.
#include <fmt/format.h>

#include <algorithm>

#include "schema/format/flat.h"
#include "schema/routines.h"

namespace pp {
namespace {

template <typename T>
using Vector = flatbuffers::Offset<flatbuffers::Vector<T>>;

int64_t CountInstructions(const Program& program) {
  int64_t n = 0;
  for (const DeviceList& list : program.lists)
    ForEachList(list, [&](const auto& one) { n += static_cast<int64_t>(one.size()); });
  return n;
}

// More than the FlatBuffer will need, so that it is built without reallocation.
int64_t EstimateBytes(const Program& program) {
  constexpr int64_t kTable = 128, kInstruction = 46, kCost = 32;
  int64_t bytes = 4 * kTable + program.scheme.size() + program.passes.size();
  if (program.costs)
    for (const CostInfo& row : Costs()) bytes += kCost * (1 + (*program.costs.*row.member).size());
  bytes += 4 * (program.pipe_of.size() + program.tied.size());
  for (const Pipe& pipe : program.pipes) bytes += kTable + 4 * pipe.device_of.size();
  if (program.job)
    bytes +=
        2 * kTable + 4 * program.job->layers_per_stage.size() + ToJson(program.job->model).size();
  for (const Routine& routine : program.routines)
    bytes += kTable + routine.name.size() + 4 * routine.pipe_of.size();
  for (const DeviceList& list : program.lists)
    bytes += (8 + list.regions.size() + 4 * list.routines.size()) * kTable;
  return bytes + kInstruction * CountInstructions(program);
}

class Encoder {
 public:
  Encoder(const Program& program, int64_t capacity)
      : program_(program), builder_(static_cast<size_t>(capacity)) {}

  flatbuffers::DetachedBuffer Run() {
    std::vector<flatbuffers::Offset<plan::Device>> lists;
    for (const DeviceList& list : program_.lists) lists.push_back(AddDevice(list));
    std::vector<flatbuffers::Offset<plan::Pipe>> pipes;
    for (const Pipe& pipe : program_.pipes) {
      pipes.push_back(plan::CreatePipe(builder_, builder_.CreateVector(pipe.device_of)));
    }
    Slots slots = {Scalar(0, kPlanFormat), Scalar(4, program_.devices), Scalar(5, program_.stages),
                   Scalar(6, program_.microbatches)};
    slots.push_back(Part(1, builder_.CreateString(program_.scheme)));
    AddAttributes(kProgramAttributes<Program>, program_, &slots);
    slots.push_back(Part(7, builder_.CreateVector(pipes)));
    slots.push_back(Part(8, builder_.CreateVector(program_.pipe_of)));
    if (program_.job) slots.push_back(Part(9, AddJob(*program_.job)));
    slots.push_back(Part(10, builder_.CreateVector(lists)));
    if (program_.overlaps) slots.push_back(Scalar(17, true));
    if (!program_.routines.empty()) slots.push_back(Part(18, AddRoutines()));
    plan::FinishPlanBuffer(builder_, AddTable<plan::Plan>(std::move(slots)));
    return builder_.Release();
  }

 private:
  using List = std::vector<Instruction>;

  // What stands in a slot of a table: a number, or a part of the file.
  struct Slot {
    int slot;
    size_t bytes;
    uint32_t number;
    bool is_part = false;
  };
  using Slots = std::vector<Slot>;
  template <typename T>
  static Slot Scalar(int slot, T number) {
    return {slot, sizeof(T), static_cast<uint32_t>(number)};
  }
  template <typename T>
  static Slot Part(int slot, flatbuffers::Offset<T> part) {
    return {slot, sizeof(part.o), part.o, true};
  }

  // In the order of flatc's functions: the largest first, and of those the last slot first.
  template <typename Table>
  flatbuffers::Offset<Table> AddTable(Slots slots) {
    std::sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) {
      return std::pair(a.bytes, a.slot) > std::pair(b.bytes, b.slot);
    });
    const flatbuffers::uoffset_t start = builder_.StartTable();
    for (const Slot& each : slots) {
      const auto slot =
          flatbuffers::FieldIndexToOffset(static_cast<flatbuffers::voffset_t>(each.slot));
      if (each.is_part) {
        builder_.AddOffset(slot, flatbuffers::Offset<void>(each.number));
      } else if (each.bytes == 1) {
        builder_.AddElement(slot, static_cast<uint8_t>(each.number));
      } else {
        builder_.AddElement(slot, each.number);
      }
    }
    return builder_.EndTable(start);
  }

  template <typename Table, typename Owner>
  void AddAttributes(const Table& table, const Owner& owner, Slots* slots) {
    const Owner none;
    ForEachRow(table, [&]<typename T>(const Attribute<Owner, T>& row) {
      const T& value = owner.*row.member;
      if (row.line != HeaderLine::kAlways && value == none.*row.member) return;
      if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
        slots->push_back(Part(row.slot, builder_.CreateVector(value)));
      } else if constexpr (std::is_class_v<T>) {
        slots->push_back(Part(row.slot, builder_.CreateString(TextOf(row, value))));
      } else {
        slots->push_back(Scalar(row.slot, value));
      }
    });
  }

  // One field of all instructions; nothing if it has the default everywhere.
  template <typename Member>
  void AddColumn(const List& list, int column, Member member, Slots* slots) {
    const Instruction none;
    using T = Entry<std::remove_cvref_t<decltype(member(none))>>;
    const auto given = [&](const Instruction& i) { return member(i) != member(none); };
    if (std::none_of(list.begin(), list.end(), given)) return;
    T* out = nullptr;
    slots->push_back(Part(column, builder_.CreateUninitializedVector<T>(list.size(), &out)));
    for (const Instruction& i : list) *out++ = static_cast<T>(member(i));
  }

  flatbuffers::Offset<plan::Instructions> AddList(const List& list) {
    uint8_t* op = nullptr;
    Slots slots = {Part(0, builder_.CreateUninitializedVector<uint8_t>(list.size(), &op))};
    for (const Instruction& i : list) *op++ = static_cast<uint8_t>(i.op);
    ForEachColumn([&](int column, std::string_view, auto member) {
      AddColumn(list, column, member, &slots);
    });
    return AddTable<plan::Instructions>(std::move(slots));
  }

  flatbuffers::Offset<plan::Device> AddDevice(const DeviceList& list) {
    const auto body = list.body.empty() ? 0 : AddList(list.body);
    std::vector<flatbuffers::Offset<plan::Instructions>> routines;
    for (const List& routine : list.routines) routines.push_back(AddList(routine));
    const auto all_routines = routines.empty() ? 0 : builder_.CreateVector(routines);
    std::vector<flatbuffers::Offset<plan::Region>> regions;
    for (const Region& region : list.regions) {
      regions.push_back(plan::CreateRegion(builder_, static_cast<uint8_t>(region.kind),
                                           region.stage, region.offset, region.bytes, region.pipe));
    }
    const auto all_regions = builder_.CreateVector(regions);
    return plan::CreateDevice(builder_, 0, body, 0, all_regions, list.arena_bytes, 0, all_routines);
  }

  Vector<flatbuffers::Offset<plan::Routine>> AddRoutines() {
    std::vector<flatbuffers::Offset<plan::Routine>> routines;
    for (const Routine& routine : program_.routines) {
      const auto name = builder_.CreateString(routine.name);
      const auto pipe_of = builder_.CreateVector(routine.pipe_of);
      routines.push_back(plan::CreateRoutine(builder_, name, routine.microbatches, pipe_of));
    }
    return builder_.CreateVector(routines);
  }

  flatbuffers::Offset<plan::Job> AddJob(const Job& job) {
    Slots slots = {Part(0, builder_.CreateString(ToJson(job.model)))};
    AddAttributes(kJobAttributes, job, &slots);
    return AddTable<plan::Job>(std::move(slots));
  }

  const Program& program_;
  flatbuffers::FlatBufferBuilder builder_;
};

}  // namespace

Result<flatbuffers::DetachedBuffer> ToFlat(const Program& program, int64_t most_bytes) {
  const int64_t bytes = EstimateBytes(program);
  if (bytes > most_bytes) {
    return Status::Invalid(
        fmt::format("{} instructions take up to {} bytes (a plan file has at most {}: fewer "
                    "micro-batches or devices)",
                    CountInstructions(program), bytes, most_bytes));
  }
  return Encoder(program, bytes).Run();
}

}  // namespace pp
