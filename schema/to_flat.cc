// Program => FlatBuffer.
#include <fmt/format.h>

#include "schema/flat.h"

namespace pp {
namespace {

template <typename T>
using Vector = flatbuffers::Offset<flatbuffers::Vector<T>>;

// More than the FlatBuffer will need, so that it is built without reallocation.
int64_t EstimateBytes(const Program& program) {
  constexpr int64_t kTable = 128, kInstruction = 46;
  int64_t bytes = 4 * kTable + program.scheme.size() + program.passes.size();
  bytes += 4 * program.pipe_of.size();
  for (const Pipe& pipe : program.pipes) bytes += kTable + 4 * pipe.device_of.size();
  if (program.job)
    bytes +=
        2 * kTable + 4 * program.job->layers_per_stage.size() + ToJson(program.job->model).size();
  for (const DeviceList& list : program.lists) {
    const size_t n =
        list.prologue.size() + list.body.size() + list.epilogue.size() + list.evaluation.size();
    bytes += 8 * kTable + kInstruction * n + kTable * list.regions.size();
  }
  return bytes;
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
    const auto scheme = builder_.CreateString(program_.scheme);
    const auto passes = builder_.CreateString(program_.passes);
    const auto all_pipes = builder_.CreateVector(pipes);
    const auto pipe_of = builder_.CreateVector(program_.pipe_of);
    const auto job = program_.job ? AddJob(*program_.job) : 0;
    const auto all_lists = builder_.CreateVector(lists);
    plan::FinishPlanBuffer(
        builder_, plan::CreatePlan(builder_, kPlanFormat, scheme, passes,
                                   static_cast<plan::P2p>(program_.p2p), program_.devices,
                                   program_.stages, program_.microbatches, all_pipes, pipe_of, job,
                                   all_lists, program_.replicas, program_.zero, program_.clip));
    return builder_.Release();
  }

 private:
  using List = std::vector<Instruction>;

  // One field of all instructions; nothing if it has the default everywhere.
  template <typename Member>
  flatbuffers::Offset<void> AddColumn(const List& list, Member member) {
    const Instruction none;
    using T = Entry<std::remove_cvref_t<decltype(member(none))>>;
    const auto given = [&](const Instruction& i) { return member(i) != member(none); };
    if (std::none_of(list.begin(), list.end(), given)) return 0;
    T* out = nullptr;
    const Vector<T> column = builder_.CreateUninitializedVector<T>(list.size(), &out);
    for (const Instruction& i : list) *out++ = static_cast<T>(member(i));
    return column.o;
  }

  flatbuffers::Offset<plan::Instructions> AddList(const List& list) {
    if (list.empty()) return 0;
    uint8_t* op = nullptr;
    std::vector<flatbuffers::Offset<void>> columns;
    columns.emplace_back(builder_.CreateUninitializedVector<uint8_t>(list.size(), &op).o);
    for (const Instruction& i : list) *op++ = static_cast<uint8_t>(i.op);
    ForEachColumn(
        [&](int, std::string_view, auto member) { columns.push_back(AddColumn(list, member)); });
    const flatbuffers::uoffset_t start = builder_.StartTable();
    for (size_t column = columns.size(); column-- > 0;)
      builder_.AddOffset(flatbuffers::FieldIndexToOffset(column), columns[column]);
    return builder_.EndTable(start);
  }

  flatbuffers::Offset<plan::Device> AddDevice(const DeviceList& list) {
    const auto prologue = AddList(list.prologue);
    const auto body = AddList(list.body);
    const auto epilogue = AddList(list.epilogue);
    const auto evaluation = AddList(list.evaluation);
    std::vector<flatbuffers::Offset<plan::Region>> regions;
    for (const Region& region : list.regions) {
      regions.push_back(plan::CreateRegion(builder_, static_cast<uint8_t>(region.kind),
                                           region.stage, region.offset, region.bytes, region.pipe));
    }
    const auto all_regions = builder_.CreateVector(regions);
    return plan::CreateDevice(builder_, prologue, body, epilogue, all_regions, list.arena_bytes,
                              evaluation);
  }

  flatbuffers::Offset<plan::Job> AddJob(const Job& job) {
    const auto model = builder_.CreateString(ToJson(job.model));
    const auto layers = builder_.CreateVector(job.layers_per_stage);
    const auto recompute =
        job.recompute.empty() ? 0 : builder_.CreateString(RecomputeText(job.recompute));
    return plan::CreateJob(builder_, model, job.micro_batch_size, job.sequence_length, layers,
                           job.tp, job.sequence_parallel, recompute,
                           static_cast<plan::Dtype>(job.dtype),
                           static_cast<plan::Backend>(job.backend));
  }

  const Program& program_;
  flatbuffers::FlatBufferBuilder builder_;
};

}  // namespace

Result<flatbuffers::DetachedBuffer> ToFlat(const Program& program, int64_t most_bytes) {
  const int64_t bytes = EstimateBytes(program);
  if (bytes > most_bytes) {
    size_t n = 0;
    for (const DeviceList& list : program.lists) {
      n += list.prologue.size() + list.body.size() + list.epilogue.size() + list.evaluation.size();
    }
    return Status::Invalid(
        fmt::format("{} instructions take up to {} bytes (a plan file has at most {}: fewer "
                    "micro-batches or devices)",
                    n, bytes, most_bytes));
  }
  return Encoder(program, bytes).Run();
}

}  // namespace pp
