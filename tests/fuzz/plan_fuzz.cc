// Plans up to their run: whatever a file with a right checksum says, piperun refuses it, or all
// that it binds lies in the arena; of the bound plans every 32nd trains for a step or two on
// the CPU, and comes to its end.
//
// Inputs are FlatBuffers without their checksum. Most are right plans in which one thing has
// changed: an instruction, its memory, a region, a number of the model.
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "compiler/compile.h"
#include "runtime/run/train.h"
#include "schema/check.h"
#include "schema/format/file.h"
#include "schema/proof/verify.h"
#include "schema/routines.h"
#include "schema/sections.h"
#include "schema/semantics/regions.h"
#include "tests/folder.h"
#include "tests/fuzz/check_bound.h"
#include "tests/fuzz/mutate.h"
#include "tests/models.h"
#include "tests/sample_program.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr size_t kSeal = 16;  // bytes after the FlatBuffer
constexpr int kLeastVocabulary = 16;
constexpr int64_t kMostArena = 64 << 20;  // bytes; a GPU's workspace has half of it
constexpr int kMostRanks = 8;
constexpr int64_t kOfThemTrained = 32;

// How far the inputs came.
struct Counts {
  int64_t bound = 0, trained = 0;
  ~Counts() { std::printf("%ld plans bound, %ld trained\n", long{bound}, long{trained}); }
};

Counts& Count() {
  static Counts counts;
  return counts;
}

// Schemes, passes, types and families; of few stages, so that a mutation often hits what matters.
const std::vector<pp::Program>& Seeds() {
  static const std::vector<pp::Program> seeds = [] {
    using pp::Dtype;
    const pp::ModelConfig tied = pp::PaperModel(2), llama = pp::SmallModel("llama", true, 2);
    const pp::Lora all = {.rank = 2, .alpha = 2, .targets = {std::string(pp::kAllLinear)}};
    pp::ModelConfig untied = tied;
    untied.tied = false;
    std::vector<pp::Program> programs;
    for (const pp::CompileOptions& options : std::vector<pp::CompileOptions>{
             {.scheme = "gpipe", .shape = {1, 2}, .job = {.model = llama}},
             {.scheme = "interleaved",
             .shape = {2, 2, 2},
             .job = {.model = tied, .layers_per_stage = {2, 0, 0, 0}}},
             {.scheme = "1f1b", .shape = {2, 2}, .job = {.model = tied, .dtype = Dtype::kFp16}},
             {.scheme = "1f1b", .shape = {2, 2}, .p2p = pp::P2p::kBlocking, .job = {.model = tied}},
             {.scheme = "1f1b", .shape = {2, 2}, .clip = false, .job = {.model = llama, .tp = 2}},
             {.scheme = "1f1b",
             .shape = {1, 2},
             .replicas = 3,
             .zero = 1,
             .job = {.model = untied}},
             {.scheme = "1f1b",
             .shape = {2, 2},
             .passes = "mario",
             .job = {.model = tied,
                    .tp = 2,
                    .sequence_parallel = true,
                    .recompute = {pp::OperatorKind::kAttention},
                    .keep = {pp::OperatorKind::kGelu}}},
             {.scheme = "interleaved",
             .shape = {2, 2, 2},
             .job = {.model = untied, .layers_per_stage = {0, 1, 1, 0}, .dtype = Dtype::kBf16}},
             {.scheme = "zb-h1",
             .shape = {2, 2},
             .job = {.model = llama, .keep = {pp::OperatorKind::kNorm, pp::OperatorKind::kSwiGlu}}},
             {.scheme = "chimera", .shape = {2, 2}, .zero = 1, .job = {.model = tied}},
             {.scheme = "dualpipe", .shape = {2, 4}, .job = {.model = tied}},
             {.scheme = "zb-h1",
             .shape = {2, 2},
             .job = {.model = tied, .lora = all, .documents = true}},
             {.scheme = "1f1b",
             .shape = {1, 2},
             .replicas = 2,
             .zero = 1,
             .job = {.model = llama, .tp = 2, .sequence_parallel = true, .lora = all}},
             {.scheme = "1f1b",
             .shape = {2, 0},
             .ramp = {{{1, 0}, {2, 1}}},
             .job = {.model = tied}},
             {.scheme = "zb-h1",
             .shape = {2, 0},
             .replicas = 2,
             .zero = 1,
             .ramp = {{{2, 0}, {1, 1}}},
             .job = {.model = untied}},
             {.scheme = "pipedream", .shape = {2, 2}, .job = {.model = untied}},
             {.scheme = "pipedream-2bw",
             .shape = {2, 2},
             .job = {.model = untied, .dtype = Dtype::kBf16, .backend = pp::DeviceKind::kCuda}}}) {
      auto program = pp::Compile(options);
      if (!program.ok()) std::fprintf(stderr, "%s\n", program.status().message().c_str());
      PP_CHECK(program.ok());
      programs.push_back(std::move(*program));
    }
    return programs;
  }();
  return seeds;
}

// Whether it shows something without taking much time or memory.
bool IsSmall(const pp::Program& program) {
  if (int64_t{program.stages} * program.microbatches > 256 || program.stages > 32) return false;
  const pp::Job& job = *program.job;
  const int64_t ranks = int64_t{program.replicas} * program.devices * job.tp;
  return ranks <= kMostRanks && job.model.layers <= 16 && job.model.vocab_size <= 4096 &&
         job.model.hidden_size <= 256 && job.model.intermediate_size <= 1024 && job.tokens() <= 256;
}

bool FitsMemory(const pp::Program& program) {
  return std::all_of(program.lists.begin(), program.lists.end(),
                     [](const pp::DeviceList& list) { return list.arena_bytes <= kMostArena; });
}

// Addresses for an arena that binding does not touch.
std::byte* Nowhere() {
  static void* const pages =
      mmap(nullptr, kMostArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  PP_CHECK(pages != MAP_FAILED);
  return static_cast<std::byte*>(pages);
}

void BindOne(const pp::Program& program) {
  const pp::Topology topology = pp::TopologyOf(program);
  for (int d = 0; d < program.devices; ++d) {
    pp::ExactDevice memory(Nowhere());
    pp::BodyWalk walk;
    // Verifies the device once more, with the regions of this kind of memory.
    if (const pp::Status status = pp::WalkBody(program, d, &walk); !status.ok()) {
      PP_CHECK(status.message().ends_with("waits for what is two bodies older (at most one)"));
      return;
    }
    PP_CHECK(memory.Allocate(program.lists[d].arena_bytes).ok());
    pp::CheckBound(program, d, pp::Bind(program, d, std::move(walk), memory), memory);
    for (int rank = 0; rank < topology.ranks(); ++rank)
      if (topology.PlaceOf(rank).device == d) pp::CheckCollectives(program, topology, rank, memory);
  }
}

void BindAll(const pp::Program& program) {
  BindOne(program);
  for (size_t r = 0; r < program.routines.size(); ++r) BindOne(pp::RoutineOf(program, r));
  ++Count().bound;
}

// Tokens 1 to 15.
const std::string& DataFile() {
  static const pp::Folder folder;
  static const std::string path = [] {
    std::ofstream out(folder / "data.txt");
    for (int i = 0; i < 1 << 15; ++i)
      out.put(static_cast<char>(1 + i * i % (kLeastVocabulary - 1)));
    return folder / "data.txt";
  }();
  return path;
}

void Train(const pp::Program& program) {
  if (program.job->model.vocab_size < kLeastVocabulary) return;
  pp::TrainOptions options;
  options.data = {DataFile()};
  options.bytes = true;
  options.optimizer.steps = program.overlaps || program.ramp.given() ? 2 : 1;
  if (!program.clip || program.MakesVersions()) options.optimizer.grad_clip = 0;
  if (pp::HasEvaluation(program)) {
    options.val_data = options.data;
    options.val_batches = 1;
    options.sample = 2;
  }
  options.stall_timeout = 5;
  options.make_device = [](int, const pp::DeviceBells&) {
    return std::make_unique<pp::ExactDevice>();
  };
  const pp::TrainReport report = pp::Train(program, options);
  // A model may be such that its loss is not finite.
  const std::string& error = report.status.message();
  if (!error.empty() && error.find("loss") == error.npos) {
    std::fprintf(stderr, "%s\n", error.c_str());
    PP_CHECK(false);
  }
  ++Count().trained;
}

// --- mutations ----------------------------------------------------------------------------------

template <typename T>
T& AnyOf(pp::Random& random, std::vector<T>& items) {
  return items[random.Below(items.size())];
}

pp::DeviceList& AnyList(pp::Random& random, pp::Program* program) {
  return AnyOf(random, program->lists);
}

std::vector<pp::Instruction>& AnySection(pp::Random& random, pp::DeviceList& list) {
  return list.routines.empty() || !random.OneIn(4) ? list.body : AnyOf(random, list.routines);
}

// Makes room at the end of an arena.
int64_t Grow(pp::DeviceList& list, int64_t bytes) {
  const int64_t at = (list.arena_bytes + pp::kAlign - 1) / pp::kAlign * pp::kAlign;
  list.arena_bytes = at + bytes;
  return at;
}

// One region more, one of another size, or one elsewhere.
void ChangeRegions(pp::Random& random, pp::Program* program) {
  pp::DeviceList& list = AnyList(random, program);
  if (list.regions.empty()) return;
  pp::Region& region = AnyOf(random, list.regions);
  pp::Region other = region;
  switch (random.Below(6)) {
    case 0:
      other.stage = random.OneIn(2) ? -1 : random.Below(program->stages);
      break;
    case 1:
      other.pipe = random.OneIn(2) ? -1 : random.Below(program->pipes.size());
      break;
    case 2:
      other.bytes += pp::kAlign * (random.Below(5) - 2);
      break;
    case 3:
      other.bytes = random.Below(65);
      break;
    case 4:
      other.kind = pp::Kinds()[random.Below(pp::Kinds().size())].kind;
      break;
    default:  // right wherever it is
      region.offset = Grow(list, region.bytes);
      std::swap(region, AnyOf(random, list.regions));
      return;
  }
  other.offset = Grow(list, std::max<int64_t>(other.bytes, 0));
  if (random.OneIn(2)) {
    region = other;
  } else {
    list.regions.insert(list.regions.begin() + random.Below(list.regions.size() + 1), other);
  }
}

// A value elsewhere.
void MoveValue(pp::Random& random, pp::Program* program) {
  pp::DeviceList& list = AnyList(random, program);
  auto& section = AnySection(random, list);
  if (section.empty()) return;
  int64_t& offset = AnyOf(random, section).offset[random.Below(3)];
  switch (random.Below(5)) {
    case 0:
      offset = AnyOf(random, section).offset[random.Below(3)];
      return;
    case 1:
      offset += pp::kAlign * (random.Below(5) - 2);
      return;
    case 2:
      offset = Grow(list, random.Below(4096));
      return;
    default:
      if (offset >= 0) offset = Grow(list, 32768);  // mostly enough
  }
}

void SwapNeighbours(pp::Random& random, pp::Program* program) {
  auto& section = AnySection(random, AnyList(random, program));
  if (section.size() < 2) return;
  const int at = random.Below(section.size() - 1);
  std::swap(section[at], section[at + 1]);
}

// Of all instructions of a stage, or of one.
void ChangeVersions(pp::Random& random, pp::Program* program) {
  const int stage = random.Below(program->stages), by = random.OneIn(2) ? 1 : -1;
  const bool all = random.OneIn(2);
  for (pp::DeviceList& list : program->lists)
    for (pp::Instruction& i : list.body)
      if (i.stage == stage && i.version >= (all ? 0 : random.Below(4)) && i.op != pp::Op::kStep)
        i.version = static_cast<int16_t>(std::max(0, i.version + by));
}

// Another model or another use of it, and the memory for that.
void ChangeJob(pp::Random& random, pp::Program* program) {
  pp::Job& job = *program->job;
  pp::ModelConfig& model = job.model;
  switch (random.Below(13)) {
    case 0:
      model.vocab_size = kLeastVocabulary + random.Below(80);
      break;
    case 1:
      job.sequence_length = 1 + random.Below(model.max_positions);
      break;
    case 2:
      job.micro_batch_size = 1 + random.Below(3);
      break;
    case 3:
      job.dtype = static_cast<pp::Dtype>(random.Below(3));
      break;
    case 4:
      job.backend = static_cast<pp::DeviceKind>(random.Below(2));
      break;
    case 5:
      model.tied = !model.tied;
      break;
    case 6: {  // layers from one stage to another, or more of them
      int& from = AnyOf(random, job.layers_per_stage);
      const int layers = std::min(from, 1 + random.Below(3));
      from -= layers;
      AnyOf(random, job.layers_per_stage) += layers;
      break;
    }
    case 7:
      AnyOf(random, job.layers_per_stage) += 1;
      model.layers += 1;
      break;
    case 8:
      job.tp = 1 + random.Below(2);
      job.sequence_parallel = job.tp > 1 && random.OneIn(2);
      break;
    case 9:
      job.recompute.clear();
      for (const auto kind : {pp::OperatorKind::kNorm, pp::OperatorKind::kLinear,
                              pp::OperatorKind::kAttention, pp::OperatorKind::kResidual})
        if (random.OneIn(2)) job.recompute.push_back(kind);
      std::sort(job.recompute.begin(), job.recompute.end());
      break;
    case 10:
      job.keep.clear();
      for (const auto kind :
           {pp::OperatorKind::kNorm, pp::OperatorKind::kGelu, pp::OperatorKind::kSwiGlu})
        if (random.OneIn(3)) job.keep.push_back(kind);
      break;
    case 11:
      model.intermediate_size = 2 * (1 + random.Below(40));
      break;
    default:
      program->replicas = 1 + random.Below(3);
      program->zero = random.Below(2);
  }
  if (!IsSmall(*program) || !pp::CheckJob(job).ok()) return;
  pp::GiveMemory(program);
}

void MutatePlan(pp::Random& random, pp::Program* program) {
  switch (random.Below(8)) {
    case 0:
      return ChangeRegions(random, program);
    case 1:
      return MoveValue(random, program);
    case 2:
      return SwapNeighbours(random, program);
    case 3:
      return ChangeVersions(random, program);
    case 4:
    case 5:
      return ChangeJob(random, program);
    default:
      return pp::Mutate(random, program);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  auto program = pp::DecodeUnsealed(bytes, "fuzz");
  if (!program.ok() || !pp::CheckRunnable(*program, "fuzz", 0).ok()) return 0;
  if (!IsSmall(*program) || !pp::Verify(*program, pp::Depth::kPlan).ok()) return 0;
  const bool cuda = std::hash<std::string_view>()(bytes) % 16 == 0;
  pp::AddRegions(cuda ? pp::DeviceKind::kCuda : pp::DeviceKind::kCpu, &*program);
  if (!FitsMemory(*program)) return 0;
  BindAll(*program);
  if (!cuda && Count().bound % kOfThemTrained == 0) Train(*program);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  pp::Random random(seed);
  if (random.OneIn(16)) return LLVMFuzzerMutate(data, size, max_size);
  pp::Result<pp::Program> program = Seeds()[random.Below(Seeds().size())];
  if (random.OneIn(3)) {
    auto old = pp::DecodeUnsealed({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (old.ok() && old->job) program = std::move(old);
  }
  do MutatePlan(random, &*program);
  while (random.OneIn(3) && program->job && pp::CheckFields(*program).ok());
  const auto encoded = pp::Encode(*program);
  PP_CHECK(encoded.ok());
  const size_t length = encoded->size() - kSeal;
  if (length > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, encoded->data(), length);
  return length;
}
