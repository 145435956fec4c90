#include "schema/file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "schema/check.h"
#include "schema/disk.h"
#include "schema/program_generated.h"

namespace pp {
namespace {

// Columns are written and read as they lie in memory.
static_assert(FLATBUFFERS_LITTLEENDIAN, "plan files are little-endian");

constexpr uint32_t kFormat = 1;
constexpr const char* kRight = "a plan that pipec wrote";

// What follows the FlatBuffer.
struct Seal {
  uint64_t length;
  uint64_t checksum;
};

Seal SealOf(std::string_view flatbuffer) {
  return {flatbuffer.size(), XXH3_64bits(flatbuffer.data(), flatbuffer.size())};
}

// ---- Program -> FlatBuffer

template <typename T>
using Vector = flatbuffers::Offset<flatbuffers::Vector<T>>;

// More than the FlatBuffer will take, so that it is built without being copied.
int64_t EstimateBytes(const Program& program) {
  constexpr int64_t kTable = 128, kInstruction = 34;
  int64_t bytes = 4 * kTable + program.scheme.size() + program.passes.size();
  bytes += 4 * program.pipe_of.size();
  for (const Pipe& pipe : program.pipes) bytes += kTable + 4 * pipe.device_of.size();
  if (program.job) bytes += 2 * kTable + 4 * program.job->layers_per_stage.size();
  for (const DeviceList& list : program.lists) {
    const size_t n = list.prologue.size() + list.body.size() + list.epilogue.size();
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
        builder_,
        plan::CreatePlan(builder_, kFormat, scheme, passes, static_cast<plan::P2p>(program_.p2p),
                         program_.devices, program_.stages, program_.microbatches, all_pipes,
                         pipe_of, job, all_lists, program_.replicas, program_.zero));
    return builder_.Release();
  }

 private:
  using List = std::vector<Instruction>;

  // One field of all instructions; nothing where it is the default everywhere.
  template <typename T, typename Get>
  Vector<T> AddColumn(const List& list, Get get) {
    const T absent = static_cast<T>(get(Instruction{}));
    const auto given = [&](const Instruction& i) { return static_cast<T>(get(i)) != absent; };
    if (std::none_of(list.begin(), list.end(), given)) return 0;
    T* out = nullptr;
    const Vector<T> column = builder_.CreateUninitializedVector<T>(list.size(), &out);
    for (const Instruction& i : list) *out++ = static_cast<T>(get(i));
    return column;
  }

  flatbuffers::Offset<plan::Instructions> AddList(const List& list) {
    if (list.empty()) return 0;
    uint8_t* op = nullptr;
    const auto ops = builder_.CreateUninitializedVector<uint8_t>(list.size(), &op);
    for (const Instruction& i : list) *op++ = static_cast<uint8_t>(i.op);
    using I = Instruction;
    const auto stage = AddColumn<int32_t>(list, [](const I& i) { return i.stage; });
    const auto micro = AddColumn<int32_t>(list, [](const I& i) { return i.micro; });
    const auto peer = AddColumn<int32_t>(list, [](const I& i) { return i.peer; });
    const auto value = AddColumn<uint8_t>(list, [](const I& i) { return i.value; });
    const auto sent = AddColumn<uint8_t>(list, [](const I& i) { return i.sent; });
    const auto bucket = AddColumn<int16_t>(list, [](const I& i) { return i.bucket; });
    const auto pipe = AddColumn<int16_t>(list, [](const I& i) { return i.pipe; });
    const auto offset0 = AddColumn<int64_t>(list, [](const I& i) { return i.offset[0]; });
    const auto offset1 = AddColumn<int64_t>(list, [](const I& i) { return i.offset[1]; });
    const auto version = AddColumn<int16_t>(list, [](const I& i) { return i.version; });
    const auto overlap = AddColumn<uint8_t>(list, [](const I& i) { return i.overlap; });
    return plan::CreateInstructions(builder_, ops, stage, micro, peer, value, sent, bucket, pipe,
                                    offset0, offset1, version, overlap);
  }

  flatbuffers::Offset<plan::Device> AddDevice(const DeviceList& list) {
    const auto prologue = AddList(list.prologue);
    const auto body = AddList(list.body);
    const auto epilogue = AddList(list.epilogue);
    std::vector<flatbuffers::Offset<plan::Region>> regions;
    for (const Region& region : list.regions) {
      regions.push_back(plan::CreateRegion(builder_, static_cast<uint8_t>(region.kind),
                                           region.stage, region.offset, region.bytes, region.pipe));
    }
    const auto all_regions = builder_.CreateVector(regions);
    return plan::CreateDevice(builder_, prologue, body, epilogue, all_regions, list.arena_bytes);
  }

  flatbuffers::Offset<plan::Job> AddJob(const Job& job) {
    const ModelConfig& m = job.model;
    const auto model =
        plan::CreateModel(builder_, m.vocab_size, m.n_positions, m.n_embd, m.n_layer, m.n_head,
                          m.n_inner, m.layer_norm_epsilon, m.embd_pdrop, m.attn_pdrop,
                          m.resid_pdrop, m.initializer_range, m.tie_word_embeddings);
    const auto layers = builder_.CreateVector(job.layers_per_stage);
    return plan::CreateJob(builder_, model, job.micro_batch_size, job.sequence_length, layers);
  }

  const Program& program_;
  flatbuffers::FlatBufferBuilder builder_;
};

Result<flatbuffers::DetachedBuffer> Build(const Program& program, int64_t most_bytes) {
  const int64_t bytes = EstimateBytes(program);
  if (bytes > most_bytes) {
    size_t n = 0;
    for (const DeviceList& list : program.lists) {
      n += list.prologue.size() + list.body.size() + list.epilogue.size();
    }
    return Status::Invalid(
        fmt::format("{} instructions take up to {} bytes (a plan file has at most {}: fewer "
                    "micro-batches or devices)",
                    n, bytes, most_bytes));
  }
  return Encoder(program, bytes).Run();
}

std::string_view ViewOf(const flatbuffers::DetachedBuffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), buffer.size()};
}

// ---- FlatBuffer -> Program

template <typename T>
size_t SizeOf(const flatbuffers::Vector<T>* vector) {
  return vector == nullptr ? 0 : vector->size();
}

// A column's entries. FlatBuffers does not promise their alignment in a damaged file.
template <typename T>
struct Column {
  const uint8_t* data = nullptr;
  T absent = 0;
  T operator[](size_t i) const {
    T entry = absent;
    if (data != nullptr) std::memcpy(&entry, data + i * sizeof(T), sizeof(T));
    return entry;
  }
};

// Takes a program out of a FlatBuffer. It reads nothing outside; whether the numbers make
// sense is CheckFields' question.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}

  // `only`: the one device whose lists are wanted.
  Result<Program> Run(std::optional<int> only) {
    PP_RETURN_IF_ERROR(CheckForm());
    PP_RETURN_IF_ERROR(ReadHead());
    PP_RETURN_IF_ERROR(ReadJob());
    const size_t devices = SizeOf(plan_->lists());
    if (only && (*only < 0 || static_cast<size_t>(*only) >= devices)) {
      return Wrong("device {} (0 to {})", *only, devices - 1);
    }
    PP_RETURN_IF_ERROR(Spend(devices));
    program_.lists.resize(devices);
    for (size_t d = 0; d < devices; ++d) {
      if (!only || *only == static_cast<int>(d)) PP_RETURN_IF_ERROR(ReadDevice(d));
    }
    PP_RETURN_IF_ERROR(CheckFields(program_));
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
      return Wrong("not a plan ({})", kRight);
    }
    // Every table takes bytes: a file with more of them is wound into itself.
    const auto* data = reinterpret_cast<const uint8_t*>(bytes_.data());
    const auto most_tables = static_cast<flatbuffers::uoffset_t>(bytes_.size() / 4);
    flatbuffers::Verifier verifier(data, bytes_.size(), /*max_depth=*/16, most_tables);
    if (!plan::VerifyPlanBuffer(verifier)) return Wrong("damaged inside ({})", kRight);
    plan_ = plan::GetPlan(data);
    if (plan_->format() > kFormat) {
      return Wrong("written by a newer pipec (format {}; this one reads up to {})", plan_->format(),
                   kFormat);
    }
    if (plan_->format() == 0) return Wrong("has no format number (1 to {})", kFormat);
    return {};
  }

  // Everything that is read takes at least a byte in the file. Lists that lie on top of each
  // other would make a huge program of a small file.
  Status Spend(size_t items) {
    if (items > bytes_.size() - spent_) return Wrong("damaged inside: lists overlap ({})", kRight);
    spent_ += items;
    return {};
  }

  Status ReadNumbers(const flatbuffers::Vector<int32_t>* from, std::vector<int32_t>* out) {
    PP_RETURN_IF_ERROR(Spend(SizeOf(from)));
    for (size_t i = 0; i < SizeOf(from); ++i) out->push_back(from->Get(i));
    return {};
  }

  Status ReadHead() {
    if (plan_->scheme() != nullptr) program_.scheme = plan_->scheme()->str();
    if (plan_->passes() != nullptr) program_.passes = plan_->passes()->str();
    program_.p2p = static_cast<P2p>(plan_->p2p());
    program_.devices = plan_->devices();
    program_.stages = plan_->stages();
    program_.microbatches = plan_->microbatches();
    program_.replicas = plan_->replicas();
    program_.zero = plan_->zero();
    PP_RETURN_IF_ERROR(Spend(SizeOf(plan_->pipes())));
    program_.pipes.resize(SizeOf(plan_->pipes()));
    for (size_t i = 0; i < program_.pipes.size(); ++i) {
      PP_RETURN_IF_ERROR(
          ReadNumbers(plan_->pipes()->Get(i)->device_of(), &program_.pipes[i].device_of));
    }
    return ReadNumbers(plan_->pipe_of(), &program_.pipe_of);
  }

  Status ReadJob() {
    const plan::Job* from = plan_->job();
    if (from == nullptr) return {};
    const plan::Model* m = from->model();
    if (m == nullptr) return Wrong("a job without a model (both or neither)");
    Job& job = program_.job.emplace();
    job.model = {.vocab_size = m->vocab_size(),
                 .n_positions = m->n_positions(),
                 .n_embd = m->n_embd(),
                 .n_layer = m->n_layer(),
                 .n_head = m->n_head(),
                 .n_inner = m->n_inner(),
                 .layer_norm_epsilon = m->layer_norm_epsilon(),
                 .embd_pdrop = m->embd_pdrop(),
                 .attn_pdrop = m->attn_pdrop(),
                 .resid_pdrop = m->resid_pdrop(),
                 .initializer_range = m->initializer_range(),
                 .tie_word_embeddings = m->tie_word_embeddings()};
    job.micro_batch_size = from->micro_batch_size();
    job.sequence_length = from->sequence_length();
    return ReadNumbers(from->layers_per_stage(), &job.layers_per_stage);
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
    PP_RETURN_IF_ERROR(ReadList(from->prologue(), &list.prologue).In(where + ", prologue"));
    PP_RETURN_IF_ERROR(ReadList(from->body(), &list.body).In(where));
    return ReadList(from->epilogue(), &list.epilogue).In(where + ", epilogue");
  }

  template <typename T>
  Status Open(const char* name, const flatbuffers::Vector<T>* from, size_t size, Column<T>* out) {
    if (from == nullptr) return {};
    if (from->size() != size) {
      return Wrong("column '{}' has {} entries (as many as 'op', {})", name, from->size(), size);
    }
    out->data = from->Data();
    return {};
  }

  Status ReadList(const plan::Instructions* from, std::vector<Instruction>* out) {
    if (from == nullptr) return {};
    const size_t n = SizeOf(from->op());
    PP_RETURN_IF_ERROR(Spend(n));
    Column<uint8_t> op, value, sent, overlap;
    Column<int32_t> stage{.absent = -1}, micro{.absent = -1}, peer{.absent = -1};
    Column<int16_t> bucket{.absent = -1}, pipe{.absent = -1}, version{.absent = -1};
    Column<int64_t> offset0{.absent = -1}, offset1{.absent = -1};
    PP_RETURN_IF_ERROR(Open("op", from->op(), n, &op));
    PP_RETURN_IF_ERROR(Open("stage", from->stage(), n, &stage));
    PP_RETURN_IF_ERROR(Open("micro", from->micro(), n, &micro));
    PP_RETURN_IF_ERROR(Open("peer", from->peer(), n, &peer));
    PP_RETURN_IF_ERROR(Open("value", from->value(), n, &value));
    PP_RETURN_IF_ERROR(Open("sent", from->sent(), n, &sent));
    PP_RETURN_IF_ERROR(Open("bucket", from->bucket(), n, &bucket));
    PP_RETURN_IF_ERROR(Open("pipe", from->pipe(), n, &pipe));
    PP_RETURN_IF_ERROR(Open("offset0", from->offset0(), n, &offset0));
    PP_RETURN_IF_ERROR(Open("offset1", from->offset1(), n, &offset1));
    PP_RETURN_IF_ERROR(Open("version", from->version(), n, &version));
    PP_RETURN_IF_ERROR(Open("overlap", from->overlap(), n, &overlap));
    out->reserve(n);
    for (size_t i = 0; i < n; ++i) {
      if (sent[i] > 1) return Wrong("instruction {}: sent {} (0 or 1)", i, sent[i]);
      if (overlap[i] > 1) return Wrong("instruction {}: overlap {} (0 or 1)", i, overlap[i]);
      out->push_back({.op = static_cast<Op>(op[i]),
                      .value = static_cast<Kind>(value[i]),
                      .sent = sent[i] == 1,
                      .overlap = overlap[i] == 1,
                      .bucket = bucket[i],
                      .pipe = pipe[i],
                      .version = version[i],
                      .stage = stage[i],
                      .micro = micro[i],
                      .peer = peer[i],
                      .offset = {offset0[i], offset1[i]}});
    }
    return {};
  }

  const std::string_view bytes_;
  const plan::Plan* plan_ = nullptr;
  size_t spent_ = 0;
  Program program_;
};

Result<Program> In(const std::string& name, Result<Program> program) {
  return program.ok() ? std::move(program) : program.status().In(name);
}

// The FlatBuffer in a file's bytes.
Result<std::string_view> Unseal(std::string_view bytes) {
  if (bytes.empty()) return Status::Invalid(fmt::format("empty ({})", kRight));
  if (bytes.size() < 8 || !plan::PlanBufferHasIdentifier(bytes.data())) {
    return Status::Invalid(fmt::format("not a plan ({})", kRight));
  }
  Seal seal{};
  std::string_view flatbuffer;
  if (bytes.size() > sizeof(seal)) {
    flatbuffer = bytes.substr(0, bytes.size() - sizeof(seal));
    std::memcpy(&seal, flatbuffer.end(), sizeof(seal));
  }
  if (flatbuffer.empty() || seal.length != flatbuffer.size()) {
    return Status::Invalid(fmt::format(
        "truncated or damaged: {} bytes without their length at the end (compile it again)",
        bytes.size()));
  }
  const uint64_t checksum = SealOf(flatbuffer).checksum;
  if (seal.checksum != checksum) {
    return Status::Invalid(
        fmt::format("damaged: its bytes have the checksum {:016x} (at its end stands {:016x})",
                    checksum, seal.checksum));
  }
  return flatbuffer;
}

Result<Program> DecodeSealed(std::string_view bytes, const std::string& name,
                             std::optional<int> only) {
  const Result<std::string_view> flatbuffer = Unseal(bytes);
  if (!flatbuffer.ok()) return flatbuffer.status().In(name);
  return In(name, Decoder(*flatbuffer).Run(only));
}

Result<Program> LoadFile(const std::string& path, std::optional<int> only) {
  const Result<MappedFile> file = MappedFile::Open(path, kRight);
  if (!file.ok()) return file.status();
  return DecodeSealed(file->bytes(), path, only);
}

}  // namespace

Status Save(const Program& program, const std::string& path) {
  const Result<flatbuffers::DetachedBuffer> buffer = Build(program, kMostPlanBytes);
  if (!buffer.ok()) return buffer.status().In(path);
  const std::string_view flatbuffer = ViewOf(*buffer);
  const Seal seal = SealOf(flatbuffer);
  const std::string_view parts[] = {flatbuffer,
                                    {reinterpret_cast<const char*>(&seal), sizeof(seal)}};
  return WriteWhole(path, parts);
}

Result<Program> Load(const std::string& path) { return LoadFile(path, std::nullopt); }

Result<Program> LoadDevice(const std::string& path, int device) { return LoadFile(path, device); }

Result<std::string> Encode(const Program& program, int64_t most_bytes) {
  const Result<flatbuffers::DetachedBuffer> buffer = Build(program, most_bytes);
  if (!buffer.ok()) return buffer.status();
  std::string bytes(ViewOf(*buffer));
  const Seal seal = SealOf(bytes);
  return bytes.append(reinterpret_cast<const char*>(&seal), sizeof(seal));
}

Result<Program> Decode(std::string_view bytes, const std::string& name) {
  return DecodeSealed(bytes, name, std::nullopt);
}

Result<Program> DecodeUnsealed(std::string_view flatbuffer, const std::string& name) {
  return In(name, Decoder(flatbuffer).Run(std::nullopt));
}

}  // namespace pp
