// FlatBuffer => Program, from arbitrary bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "schema/check.h"
#include "schema/format/file.h"
#include "schema/format/flat.h"
#include "schema/routines.h"
#include "schema/sections.h"
#include "schema/semantics/regions.h"
#include "schema/topology.h"

namespace pp {
namespace {

template <typename T>
size_t SizeOf(const flatbuffers::Vector<T>* vector) {
  return vector == nullptr ? 0 : vector->size();
}

// Extracts a program from a FlatBuffer. It reads nothing outside; whether the values make sense is
// for CheckFields to say.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}

  Result<Program> Run(const Selection& selection) {
    PP_RETURN_IF_ERROR(CheckForm());
    PP_RETURN_IF_ERROR(ReadHead());
    PP_RETURN_IF_ERROR(ReadJob());
    const size_t devices = SizeOf(plan_->lists());
    auto only = static_cast<size_t>(selection.number);
    if (selection.whose == Selection::Whose::kDevice && only >= devices) {
      return Wrong("device {} (0 to {})", selection.number, devices - 1);
    }
    if (selection.whose == Selection::Whose::kRank) only = DeviceOf(selection.number);
    const bool all = selection.whose == Selection::Whose::kAll;
    PP_RETURN_IF_ERROR(Spend(devices));
    program_.lists.resize(devices);
    given_.resize(devices);
    for (size_t d = 0; d < devices; ++d) {
      if (all || only == d)
        PP_RETURN_IF_ERROR(ReadDevice(d));
      else
        program_.lists[d].routines.resize(program_.routines.size());
    }
    PP_RETURN_IF_ERROR(CheckFields(program_));
    PP_RETURN_IF_ERROR(CheckSections());
    if (plan_->format() < kFormatOfKernels && program_.job) AddRegions(DeviceKind::kCpu, &program_);
    return std::move(program_);
  }

 private:
  template <typename... Args>
  static Status Wrong(fmt::format_string<Args...> format, Args&&... args) {
    return Status::Invalid(fmt::format(format, std::forward<Args>(args)...));
  }

  Status CheckForm() {
    if (static_cast<int64_t>(bytes_.size()) > kMostPlanBytes) {
      return Wrong("{} bytes (a plan has at most {})", bytes_.size(), kMostPlanBytes);
    }
    if (bytes_.size() < 8 || !plan::PlanBufferHasIdentifier(bytes_.data())) {
      return Wrong("not a plan ({})", kRightPlan);
    }
    // Every table takes bytes: a file with more tables than that contains some of them repeatedly.
    const auto* data = reinterpret_cast<const uint8_t*>(bytes_.data());
    const auto most_tables = static_cast<flatbuffers::uoffset_t>(bytes_.size() / 4);
    flatbuffers::Verifier verifier(data, bytes_.size(), /*max_depth=*/16, most_tables);
    if (!plan::VerifyPlanBuffer(verifier)) return Wrong("damaged inside ({})", kRightPlan);
    plan_ = plan::GetPlan(data);
    if (plan_->format() > kPlanFormat) {
      return Wrong("written by a newer pipec (format {}; this one reads {})", plan_->format(),
                   kPlanFormat);
    }
    if (plan_->format() < kOldestFormat)
      return Wrong(
          "written by an older pipec (format {}; this one reads {} to {}: compile it again)",
          plan_->format(), kOldestFormat, kPlanFormat);
    return {};
  }

  // None of them, if there is no such rank. Nothing has been checked yet.
  size_t DeviceOf(int rank) const {
    Topology topology = TopologyOf(program_);
    for (int* count : {&topology.replicas, &topology.devices, &topology.tp})
      *count = std::max(1, *count);
    return static_cast<size_t>(topology.PlaceOf(rank).device);
  }

  // Everything that is read takes at least a byte in the file. Overlapping lists would turn a small
  // file into a huge program.
  Status Spend(size_t items) {
    if (items > bytes_.size() - spent_)
      return Wrong("damaged inside: lists overlap ({})", kRightPlan);
    spent_ += items;
    return {};
  }

  Status ReadNumbers(const flatbuffers::Vector<int32_t>* from, std::vector<int32_t>* out) {
    PP_RETURN_IF_ERROR(Spend(SizeOf(from)));
    for (size_t i = 0; i < SizeOf(from); ++i) out->push_back(from->Get(i));
    return {};
  }

  // What a table has in a slot; like flatc's accessors, whose table is private.
  template <typename T, typename Table>
  static const T* PartOf(const Table* from, int slot) {
    return reinterpret_cast<const flatbuffers::Table*>(from)->GetPointer<const T*>(
        flatbuffers::FieldIndexToOffset(static_cast<flatbuffers::voffset_t>(slot)));
  }
  template <typename T, typename Table>
  static T NumberOf(const Table* from, int slot, T absent) {
    return reinterpret_cast<const flatbuffers::Table*>(from)->GetField<T>(
        flatbuffers::FieldIndexToOffset(static_cast<flatbuffers::voffset_t>(slot)), absent);
  }

  template <typename Table, typename Owner, typename From>
  Status ReadAttributes(const Table& table, const From* from, Owner* owner) {
    Status status;
    ForEachRow(table, [&]<typename T>(const Attribute<Owner, T>& row) {
      T& value = owner->*row.member;
      if (!status.ok()) return;
      if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
        status = ReadNumbers(PartOf<flatbuffers::Vector<int32_t>>(from, row.slot), &value);
      } else if constexpr (std::is_class_v<T>) {
        const auto* text = PartOf<flatbuffers::String>(from, row.slot);
        if (text != nullptr)
          status = Read(row, text->string_view(), &value).In(std::string(row.text));
      } else {
        value = static_cast<T>(NumberOf(from, row.slot, static_cast<Entry<T>>(value)));
      }
    });
    return status;
  }

  Status ReadHead() {
    if (plan_->scheme() != nullptr) program_.scheme = plan_->scheme()->str();
    program_.devices = plan_->devices();
    program_.stages = plan_->stages();
    program_.microbatches = plan_->microbatches();
    program_.overlaps = plan_->format() < kFormatOfOverlap ? HaveSections() : plan_->overlaps();
    PP_RETURN_IF_ERROR(ReadAttributes(kProgramAttributes<Program>, plan_, &program_));
    PP_RETURN_IF_ERROR(Spend(SizeOf(plan_->pipes())));
    program_.pipes.resize(SizeOf(plan_->pipes()));
    for (size_t i = 0; i < program_.pipes.size(); ++i) {
      PP_RETURN_IF_ERROR(
          ReadNumbers(plan_->pipes()->Get(i)->device_of(), &program_.pipes[i].device_of));
    }
    PP_RETURN_IF_ERROR(ReadNumbers(plan_->pipe_of(), &program_.pipe_of));
    return ReadRoutines();
  }

  Status ReadRoutines() {
    if (plan_->format() < kFormatOfRoutines) {
      if (HaveEvaluation()) program_.routines.push_back(EvaluationLike(program_));
      return {};
    }
    if (SizeOf(plan_->routines()) > kMostRoutines)
      return Wrong("{} routines (at most {})", SizeOf(plan_->routines()), kMostRoutines);
    for (size_t r = 0; r < SizeOf(plan_->routines()); ++r) {
      const plan::Routine* from = plan_->routines()->Get(r);
      Routine& routine = program_.routines.emplace_back();
      if (from->name() != nullptr) routine.name = from->name()->str();
      routine.microbatches = from->microbatches();
      PP_RETURN_IF_ERROR(ReadNumbers(from->pipe_of(), &routine.pipe_of));
    }
    return {};
  }

  Status ReadJob() {
    const plan::Job* from = plan_->job();
    if (from == nullptr) return {};
    if (from->model() == nullptr) return Wrong("a job without a model (both or neither)");
    auto model = ParseModelConfig(from->model()->string_view(), "model");
    if (!model.ok()) return Wrong("{}", model.status().message());
    Job& job = program_.job.emplace();
    job.model = *model;
    PP_RETURN_IF_ERROR(ReadAttributes(kJobAttributes, from, &job));
    program_.shape_of = job.shapes.ByMicrobatch();
    return {};
  }

  bool HaveEvaluation() const {
    for (size_t d = 0; d < SizeOf(plan_->lists()); ++d)
      if (const auto* list = plan_->lists()->Get(d)->evaluation();
          list != nullptr && SizeOf(list->op()) > 0)
        return true;
    return false;
  }

  // Old formats say by them whether steps overlap.
  bool HaveSections() const {
    for (size_t d = 0; d < SizeOf(plan_->lists()); ++d)
      for (const auto* part :
           {plan_->lists()->Get(d)->prologue(), plan_->lists()->Get(d)->epilogue()})
        if (part != nullptr && SizeOf(part->op()) > 0) return true;
    return false;
  }

  // Those that a file has are those that follow from its bodies.
  Status CheckSections() const {
    for (size_t d = 0; d < given_.size(); ++d)
      if (given_[d] && *given_[d] != SectionsOf(program_, static_cast<int>(d)))
        return Wrong("device {}: its prologue or epilogue does not follow from its body ({})", d,
                     kRightPlan);
    return {};
  }

  Status ReadDevice(size_t device) {
    const plan::Device* from = plan_->lists()->Get(device);
    DeviceList& list = program_.lists[device];
    list.arena_bytes = from->arena_bytes();
    PP_RETURN_IF_ERROR(Spend(SizeOf(from->regions())));
    for (size_t i = 0; i < SizeOf(from->regions()); ++i) {
      const plan::Region* r = from->regions()->Get(i);
      list.regions.push_back(
          {static_cast<Kind>(r->kind()), r->stage(), r->pipe(), r->offset(), r->bytes()});
    }
    const std::string where = fmt::format("device {}", device);
    PP_RETURN_IF_ERROR(ReadList(from->body(), &list.body).In(where));
    if (from->prologue() != nullptr || from->epilogue() != nullptr) {
      Sections& given = given_[device].emplace();
      PP_RETURN_IF_ERROR(ReadList(from->prologue(), &given.prologue).In(where + ", prologue"));
      PP_RETURN_IF_ERROR(ReadList(from->epilogue(), &given.epilogue).In(where + ", epilogue"));
    }
    if (plan_->format() < kFormatOfRoutines && !program_.routines.empty()) {
      return ReadList(from->evaluation(), &list.routines.emplace_back()).In(where + ", evaluation");
    }
    PP_RETURN_IF_ERROR(Spend(SizeOf(from->routines())));
    list.routines.resize(SizeOf(from->routines()));
    for (size_t r = 0; r < list.routines.size(); ++r)
      PP_RETURN_IF_ERROR(ReadList(from->routines()->Get(r), &list.routines[r])
                             .In(fmt::format("{}, routine {}", where, r)));
    return {};
  }

  // Gives the instructions from `begin` on, a block of them, their entries of a column, unless
  // there is none. FlatBuffers does not guarantee the entries' alignment in a damaged file.
  template <typename Member>
  Status ReadColumn(const plan::Instructions* from, int column, std::string_view name,
                    Member member, size_t begin, std::vector<Instruction>* out) {
    using Value = std::remove_cvref_t<decltype(member(out->front()))>;
    using T = Entry<Value>;
    const auto* entries = PartOf<flatbuffers::Vector<T>>(from, column);
    if (entries == nullptr) return {};
    if (entries->size() != out->size()) {
      return Wrong("column '{}' has {} entries (as many as 'op', {})", name, entries->size(),
                   out->size());
    }
    const uint8_t* data = entries->Data();
    const size_t end = std::min(begin + kBlock, out->size());
    for (size_t i = begin; i < end; ++i) {
      T entry;
      std::memcpy(&entry, data + i * sizeof(T), sizeof(T));
      if (std::is_same_v<Value, bool> && entry > 1)
        return Wrong("instruction {}: {} {} (0 or 1)", i, name, entry);
      member((*out)[i]) = static_cast<Value>(entry);
    }
    return {};
  }

  Status ReadList(const plan::Instructions* from, std::vector<Instruction>* out) {
    if (from == nullptr) return {};
    const size_t n = SizeOf(from->op());
    PP_RETURN_IF_ERROR(Spend(n));
    out->resize(n);
    for (size_t i = 0; i < n; ++i) (*out)[i].op = static_cast<Op>(from->op()->Get(i));
    Status status;
    size_t begin = 0;
    do {
      ForEachColumn([&](int column, std::string_view name, auto member) {
        if (status.ok()) status = ReadColumn(from, column, name, member, begin, out);
      });
      begin += kBlock;
    } while (status.ok() && begin < n);
    return status;
  }

  static constexpr uint32_t kFormatOfKernels = 4, kFormatOfOverlap = 5, kFormatOfRoutines = 6;
  static constexpr size_t kBlock = 256;  // instructions, which stay in the cache

  const std::string_view bytes_;
  const plan::Plan* plan_ = nullptr;
  size_t spent_ = 0;
  Program program_;
  std::vector<std::optional<Sections>> given_;  // by device
};

}  // namespace

Result<Program> FromFlat(std::string_view flatbuffer, const Selection& selection) {
  return Decoder(flatbuffer).Run(selection);
}

}  // namespace pp
