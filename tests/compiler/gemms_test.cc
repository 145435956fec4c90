// Which algorithms compute products on a GPU: the file, the choice by timing, and runs with it,
// over a fake of CUDA (fake_cuda.h).
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "compiler/scheme.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/gemm_table.h"
#include "runtime/device/cuda/gemm_tuner.h"
#include "runtime/device/cuda/products.h"
#include "runtime/model/products.h"
#include "schema/semantics/regions.h"
#include "tests/cuda_runs.h"
#include "tests/fake_cuda.h"
#include "tests/folder.h"
#include "tests/kept_report.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

using kernels::MatmulShape;

Program ProgramOf(const std::string& family, Dtype dtype, int tp = 1) {
  CompileOptions options{.scheme = "1f1b", .shape = {2, 4}};
  options.passes = "mario";
  options.job.model = SmallModel(family, true, /*layers=*/4, /*positions=*/4, /*llama_heads=*/4);
  options.job.dtype = dtype;
  options.job.tp = tp;
  return MustCompile(options);
}

GemmAlgorithm Algorithm(uint64_t first) {
  return {.words = {first, 0, 0xabcdef, 0, 0, 0, 0, ~0ull}};
}

// One of the fake's, a different one for each shape.
uint64_t Best(const MatmulShape& shape) {
  const std::string text = ToText(shape);
  return XXH3_64bits(text.data(), text.size()) % kFakeAlgorithms + 1;
}

std::string WithChecksum(const std::string& text) {
  return text + fmt::format("checksum {:016x}\n", XXH3_64bits(text.data(), text.size()));
}

std::string ErrorOf(const std::string& text) { return GemmTable::Parse(text).status().message(); }

// The algorithm that computed each shape.
struct Used {
  std::mutex mutex;
  std::map<std::string, std::map<uint64_t, int>> algorithms;
};

KeptReport Run(const Program& plan, std::shared_ptr<const GemmTable> gemms, Used* used) {
  Program program = plan;
  AddRegions(DeviceKind::kCuda, &program);
  static const Folder folder;
  TrainOptions options;
  options.data = {folder.WriteText("text.txt", 4000)};
  options.optimizer.steps = 2;
  options.stall_timeout = 60;
  options.make_device = [=](int rank, const DeviceBells& bells) {
    FakeCudaArgs fake{.seed = static_cast<unsigned>(rank + 1)};
    fake.seconds = [used](const MatmulShape& shape, const GemmAlgorithm& algorithm) {
      std::lock_guard<std::mutex> lock(used->mutex);
      ++used->algorithms[ToText(shape)][algorithm.words[0]];
      return 0.0;
    };
    return MakeCudaDevice(MakeFakeCuda(fake), {.bells = bells, .gemms = gemms});
  };
  return TrainAndKeep(program, options);
}

// A product with an epilogue takes `epilogue` times as long as one without.
GemmTable Tuned(const Program& program, double epilogue = 0.5) {
  FakeCudaArgs fake;
  fake.seconds = [=](const MatmulShape& shape, const GemmAlgorithm& algorithm) {
    const bool plain = shape.epilogue == kernels::Epilogue::kNone;
    return (algorithm.words[0] == Best(shape) ? 1e-6 : 2e-6) * (plain ? 1 : epilogue);
  };
  Result<TunedGemms> tuned = TuneGemms(MakeFakeCuda(fake).get(), AllProducts(*program.job));
  REQUIRE(tuned.ok());
  return tuned->table;
}

}  // namespace

TEST_CASE("a table of algorithms is what was written") {
  for (const char* family : {"gpt2", "llama"})
    for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
      const std::vector<MatmulShape> shapes = AllProducts(*ProgramOf(family, dtype, 2).job);
      CHECK(shapes.size() > 8);
      GemmTable table({.gpu = "NVIDIA H200, 132 multiprocessors, sm_90", .library = 130100});
      for (size_t i = 0; i < shapes.size(); ++i) table.Add(shapes[i], Algorithm(i), 0.5 + 7.0 * i);
      Result<GemmTable> parsed = GemmTable::Parse(table.Print());
      REQUIRE(parsed.ok());
      CHECK(parsed->Print() == table.Print());
      for (size_t i = 0; i < shapes.size(); ++i) {
        REQUIRE(parsed->Find(shapes[i]) != nullptr);
        CHECK(*parsed->Find(shapes[i]) == Algorithm(i));
      }
      CHECK(parsed->Lacks(shapes) == 0);
      MatmulShape other = shapes[0];
      ++other.m;
      CHECK(parsed->Find(other) == nullptr);
      CHECK(parsed->Lacks({other, shapes[0]}) == 1);
    }
}

TEST_CASE("a table with a damaged byte, or cut off, is an error") {
  GemmTable table({.gpu = "G", .library = 1});
  table.Add({.m = 8, .n = 16, .k = 24, .epilogue = kernels::Epilogue::kGelu}, Algorithm(1), 1.5);
  table.Add({.m = 8, .n = 16, .k = 24}, Algorithm(2), 2);
  const std::string text = table.Print();
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
    INFO(damaged);
    // The last line may be written in capitals.
    CHECK((!GemmTable::Parse(damaged).ok() || damaged[i] == (text[i] ^ 0x20)));
    CHECK(!GemmTable::Parse(text.substr(0, i)).ok());
  }
  CHECK(!GemmTable::Parse(text + text).ok());
}

TEST_CASE("what is wrong with a table is said with its line") {
  const std::string head = "piperun gemms 1\ngpu G\ncublaslt 5\n";
  const std::string hex(128, '0');
  const auto line = [&](const std::string& shape) {
    return ErrorOf(WithChecksum(head + shape + " 1.5 " + hex + "\n"));
  };
  CHECK(line("nn 8x16x24 24,16,16 bf16 set bias - gelu").empty());
  CHECK(ErrorOf("") == "ends in line 1 (after a checksum)");
  CHECK(ErrorOf("{}\n") == "has no algorithms of products (a file of piperun --tune-gemms)");
  CHECK(ErrorOf("piperun gemms 1\nx\n") == "line 2: 'x' (gpu NAME)");
  CHECK(ErrorOf("piperun gemms 1\ngpu G\ncublaslt x\n") ==
        "line 3: 'cublaslt x' (cublaslt VERSION)");
  CHECK(line("xx 8x16x24 24,16,16 bf16 set bias - gelu") == "line 4: 'xx' (nn, nt or tn)");
  for (const char* sizes :
       {"8x16", "8x16x", "8x0x24", "8x-1x24", "8x16x24x2", "8.5x1x1", "99999999999999999999x1x1"})
    CHECK(line(fmt::format("nn {} 24,16,16 bf16 set bias - gelu", sizes)) ==
          fmt::format("line 4: '{}' (as 16x32x64)", sizes));
  CHECK(line("nn 8x16x24 24,,16 bf16 set bias - gelu") == "line 4: '24,,16' (as 64,32,32)");
  CHECK(line("nn 8x16x24 24,16,16 fp8 set bias - gelu") ==
        "line 4: 'fp8' (fp32, bf16, bf16-sum, fp16 or fp16-sum)");
  CHECK(line("nn 8x16x24 24,16,16 bf16 += bias - gelu") == "line 4: '+=' (set or add)");
  CHECK(line("nn 8x16x24 24,16,16 bf16 set bias bias gelu") == "line 4: 'bias' (residual or -)");
  CHECK(line("nn 8x16x24 24,16,16 bf16 set bias - relu") ==
        "line 4: 'relu' (gelu, gelu-backward or -)");
  const std::string good = head + "nn 8x16x24 24,16,16 bf16 set bias - gelu ";
  CHECK(ErrorOf(WithChecksum(good + "nan " + hex + "\n")) == "line 4: 'nan' (microseconds)");
  CHECK(ErrorOf(WithChecksum(good + "1.5 123\n")) == "line 4: '123' (128 hexadecimal digits)");
  const std::string row = "nn 8x16x24 24,16,16 bf16 set bias - gelu 1.5 " + hex + "\n";
  CHECK(ErrorOf(WithChecksum(head + row + row)) ==
        "line 5: 'nn 8x16x24 24,16,16 bf16 set bias - gelu' (one line per product)");
  CHECK(ErrorOf(head + row + "checksum 0000000000000000\n") ==
        "line 5: 'checksum 0000000000000000' (the lines before have a different one: the file is "
        "damaged)");
}

TEST_CASE("the fastest algorithm of each product is chosen") {
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
    const Program program = ProgramOf("gpt2", dtype);
    const GemmTable table = Tuned(program);
    int epilogues = 0;
    for (MatmulShape shape : AllProducts(*program.job)) {
      const bool fused = shape.epilogue != kernels::Epilogue::kNone;
      epilogues += fused && table.Find(shape) != nullptr ? 1 : 0;
      if (dtype == Dtype::kFp32) shape.epilogue = kernels::Epilogue::kNone;
      REQUIRE(table.Find(shape) != nullptr);
      CHECK(table.Find(shape)->words[0] == Best(shape));
    }
    CHECK(epilogues == (dtype == Dtype::kBf16 ? 2 : 0));
  }
}

// Of one product: the algorithm that was chosen, and how many were timed.
struct Tuning {
  uint64_t best = 0;
  std::string line;
};

// `seconds`: of an algorithm, and of how many of its launches there were before.
Tuning TuneOne(int algorithms, const std::function<double(uint64_t, int)>& seconds,
               int64_t rows = 16,
               const std::function<void(const kernels::MatmulArgs&)>& sees = {}) {
  const MatmulShape shape = {
      .m = rows, .n = 2048, .k = 8, .numbers = kernels::MatmulNumbers::kBf16};
  FakeCudaArgs fake{.sees = sees, .algorithms = algorithms};
  std::map<uint64_t, int> launches;
  fake.seconds = [&](const MatmulShape&, const GemmAlgorithm& algorithm) {
    return seconds(algorithm.words[0], launches[algorithm.words[0]]++);
  };
  const Result<TunedGemms> tuned = TuneGemms(MakeFakeCuda(fake).get(), {shape});
  REQUIRE(tuned.ok());
  REQUIRE(tuned->table.Find(shape) != nullptr);
  REQUIRE(tuned->lines.size() == 1);
  return {tuned->table.Find(shape)->words[0], tuned->lines[0]};
}

TEST_CASE("128 algorithms are timed, and no more of them than time allows") {
  const auto best_is = [](uint64_t best, double each) {
    return [=](uint64_t algorithm, int) { return algorithm == best ? each / 2 : each; };
  };
  const Tuning wide = TuneOne(200, best_is(120, 5e-4));
  CHECK(wide.best == 120);
  CHECK_THAT(wide.line,
             Catch::Contains(" 250.0 us, 120 of 128; the first 500.0 us; algorithm 120"));
  CHECK(TuneOne(200, best_is(129, 5e-4)).best != 129);
  // 16 of these take longer than a shape may; each takes four launches in the first pass.
  const Tuning slow = TuneOne(200, best_is(16, 0.01));
  CHECK(slow.best == 16);
  CHECK_THAT(slow.line, Catch::Contains(" 16 of 16; "));
  CHECK_THAT(TuneOne(200, best_is(20, 0.006)).line, Catch::Contains(" 20 of 22; "));
}

TEST_CASE("an algorithm is the fastest by the median of several rounds") {
  constexpr int kFirstPass = 4;  // launches: one to prepare it, one that does not count, a round
  const auto seconds = [](uint64_t algorithm, int launch) {
    const int round = (launch - kFirstPass) / 2;
    const bool once = launch >= kFirstPass && round == 3;
    if (algorithm == 1) return once ? 100.0 : 2.0;  // by the mean it would be the slowest
    return once ? 0.1 : 3.0;                        // by its best round it would be the fastest
  };
  const Tuning tuning = TuneOne(2, seconds);
  CHECK(tuning.best == 1);
  CHECK_THAT(tuning.line, Catch::Contains(" 2000000.0 us, 1 of 2; "));
}

TEST_CASE("operands rotate past the L2 cache") {
  std::set<const void*> a, b, c;
  TuneOne(
      3, [](uint64_t, int) { return 1.0; }, /*rows=*/1024,
      [&](const kernels::MatmulArgs& args) {
        a.insert(args.a), b.insert(args.b), c.insert(args.c);
      });
  CHECK(a.size() == c.size());
  CHECK(b.size() == c.size());
  const auto* first = static_cast<const std::byte*>(*c.begin());
  CHECK(static_cast<const std::byte*>(*c.rbegin()) - first >= int64_t{50} << 20);
}

TEST_CASE(
    "all ranks compute a product by the algorithm of the file, and by the first one without") {
  const Program program = ProgramOf("gpt2", Dtype::kBf16, 2);
  const GemmTable tuned = Tuned(program);
  const Folder folder;
  const std::string path = folder / "gemms";
  std::ofstream(path) << tuned.Print();
  Result<GemmTable> read = GemmTable::Open(path);
  REQUIRE(read.ok());
  Used by_file, alone;
  REQUIRE(Run(program, std::make_shared<GemmTable>(*read), &by_file).status.ok());
  REQUIRE(Run(program, nullptr, &alone).status.ok());
  CHECK(by_file.algorithms.size() == alone.algorithms.size());
  int others = 0;
  for (const MatmulShape& shape : AllProducts(*program.job)) {
    const std::string name = ToText(shape);
    INFO(name);
    REQUIRE(by_file.algorithms[name].size() == 1);
    CHECK(by_file.algorithms[name].begin()->first == Best(shape));
    REQUIRE(alone.algorithms[name].size() == 1);
    CHECK(alone.algorithms[name].begin()->first == 1);
    others += Best(shape) != 1 ? 1 : 0;
  }
  CHECK(others > 0);
  CHECK(by_file.algorithms.size() == AllProducts(*program.job).size());

  Used some;
  auto half = std::make_shared<GemmTable>(GemmMachine{.gpu = "a fake", .library = 1});
  const std::vector<MatmulShape> shapes = AllProducts(*program.job);
  for (size_t i = 0; i < shapes.size(); i += 2) half->Add(shapes[i], *tuned.Find(shapes[i]), 1);
  CHECK(half->Lacks(shapes) == static_cast<int>(shapes.size() / 2));
  REQUIRE(Run(program, half, &some).status.ok());
  for (size_t i = 0; i < shapes.size(); ++i)
    CHECK(some.algorithms[ToText(shapes[i])].begin()->first == (i % 2 == 0 ? Best(shapes[i]) : 1));
}

TEST_CASE("a plain product is timed without GELU, for which there may be no memory") {
  const std::vector<MatmulShape> plain = {
      {.m = 8, .n = 16, .k = 8, .numbers = kernels::MatmulNumbers::kBf16}};
  const Result<TunedGemms> tuned = TuneGemms(MakeFakeCuda({}).get(), plain);
  REQUIRE(tuned.ok());
  CHECK(tuned->table.Lacks(plain) == 0);
  CHECK(tuned->lines.size() == 1);
}

TEST_CASE("GELU stays a kernel of its own where that is faster") {
  const Program program = ProgramOf("gpt2", Dtype::kBf16);
  for (const double epilogue : {0.5, 3.0}) {
    auto table = std::make_shared<GemmTable>(Tuned(program, epilogue));
    CHECK(table->Lacks(AllProducts(*program.job)) == 0);
    Used used;
    REQUIRE(Run(program, table, &used).status.ok());
    for (MatmulShape shape : AllProducts(*program.job)) {
      if (shape.epilogue == kernels::Epilogue::kNone) continue;
      CHECK((table->Find(shape) != nullptr) == (epilogue < 1));
      CHECK(used.algorithms.contains(ToText(shape)) == (epilogue < 1));
      shape.epilogue = kernels::Epilogue::kNone;
      CHECK((table->Find(shape) != nullptr) == (epilogue > 1));
      CHECK(used.algorithms.contains(ToText(shape)) == (epilogue > 1));
    }
  }
}

// Rows of a matrix of one column, or one row, and rows of odd lengths.
bool IsDegenerate(const MatmulShape& shape) {
  const MatmulShape s = Whole(shape);
  return s.m == 1 || s.n == 1 || s.k == 1 || s.lda % 8 != 0 || s.ldb % 8 != 0 || s.ldc % 8 != 0;
}

// Micro-batches of one token, and a vocabulary that is no multiple of 8, make some of each.
Program DegenerateProgram(const std::string& family, Dtype dtype) {
  CompileOptions options{.scheme = "1f1b", .shape = {2, 4}};
  options.job.model = SmallModel(family, true, /*layers=*/2, /*positions=*/4);
  options.job.dtype = dtype;
  options.job.sequence_length = 1;
  return MustCompile(options);
}

TEST_CASE("what cuBLASLt refuses is computed by our own kernel, and noted once") {
  for (const char* family : {"gpt2", "llama"})
    for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
      const Program program = DegenerateProgram(family, dtype);
      const KeptReport cpu = RunOnCpu(program);
      const double most = dtype == Dtype::kFp32 ? 1e-5 : dtype == Dtype::kFp16 ? 4e-3 : 2e-2;
      for (const auto& refuses :
           {std::function(IsDegenerate), std::function([](const MatmulShape&) { return true; })}) {
        std::vector<std::string> notes;
        const KeptReport report = RunOnCuda(
            program, {.refuses = refuses, .note = [&](auto& note) { notes.push_back(note); }});
        INFO(family << " " << NameOf(dtype) << ": " << report.status.message());
        REQUIRE(report.status.ok());
        CHECK(Difference(report, cpu) < most);
        size_t refused = 0;
        for (MatmulShape shape : AllProducts(*program.job)) {
          shape.epilogue = kernels::Epilogue::kNone;
          if (!refuses(shape)) continue;
          ++refused;
          const std::string note = fmt::format(
              "cuBLASLt refuses '{}' (a fake that refuses it): computed by piperun's "
              "own kernel",
              ToText(shape));
          INFO(note);
          CHECK(std::count(notes.begin(), notes.end(), note) >= 1);
          // By rank: both may have products of this shape.
          CHECK(std::count(notes.begin(), notes.end(), note) <= 2);
        }
        CHECK(refused > 0);
      }
    }
}

TEST_CASE("a shape is tried once, and no value is left where it was") {
  std::map<std::string, int> computed;
  FakeCudaArgs fake;
  fake.seconds = [&](const MatmulShape& shape, const GemmAlgorithm&) {
    ++computed[ToText(shape)];
    return 0.0;
  };
  fake.note = "a note";
  const auto cuda = MakeFakeCuda(fake);
  constexpr int64_t kBytes = 4096;
  std::byte* dead = *cuda->Allocate(kBytes);
  std::vector<std::string> notes;
  CudaProducts products({.driver = cuda.get(),
                         .stream = cuda->MakeStream(),
                         .dead = {dead, kBytes},
                         .note = [&](const std::string& note) { notes.push_back(note); }});
  const MatmulShape shape = {.m = 8,
                             .n = 16,
                             .k = 8,
                             .numbers = kernels::MatmulNumbers::kBf16,
                             .epilogue = kernels::Epilogue::kGelu};
  REQUIRE(products.Fuses(shape));
  const int product = products.Prepare(shape);
  CHECK(products.Prepare(shape) == product);
  CHECK(products.Prepare(WithoutEpilogue(shape)) != product);
  CHECK(products.shape(product) == Whole(shape));
  CHECK(notes == std::vector<std::string>{"a note", "a note"});  // of either shape
  CHECK(computed ==
        std::map<std::string, int>{{ToText(shape), 1}, {ToText(WithoutEpilogue(shape)), 1}});
  const auto* words = reinterpret_cast<const uint32_t*>(dead);
  const int64_t written = 2 * OperandBytes(shape).c / 4;  // C and aux
  CHECK(std::count(words, words + written, kUntouchedWord) == written);
  CudaProducts apart({.driver = cuda.get(),
                      .stream = cuda->MakeStream(),
                      .fuses_gelu = false,
                      .dead = {dead, kBytes}});
  CHECK_FALSE(apart.Fuses(shape));
}

TEST_CASE("a refused product is not in the table, and said to be refused") {
  const std::vector<MatmulShape> shapes = {{.m = 1, .n = 16, .k = 8}, {.m = 8, .n = 16, .k = 8}};
  const Result<TunedGemms> tuned = TuneGemms(MakeFakeCuda({.refuses = IsDegenerate}).get(), shapes);
  REQUIRE(tuned.ok());
  CHECK(tuned->table.Find(shapes[0]) == nullptr);
  CHECK(tuned->table.Find(shapes[1]) != nullptr);
  REQUIRE(tuned->lines.size() == 2);
  CHECK_THAT(
      tuned->lines[0],
      Catch::StartsWith("nn 1x16x8 ") &&
          Catch::EndsWith("refused (a fake that refuses it): computed by piperun's own kernel"));
  CHECK_THAT(tuned->lines[1], Catch::Contains("; algorithm "));
}

TEST_CASE("a table for another GPU, and an algorithm that is none, are an error") {
  const Program program = ProgramOf("gpt2", Dtype::kBf16);
  const Folder folder;
  const std::string path = folder / "gemms";
  std::ofstream(path) << GemmTable({.gpu = "NVIDIA A100", .library = 1}).Print();
  Used used;
  const auto other = std::make_shared<GemmTable>(*GemmTable::Open(path));
  CHECK_THAT(Run(program, other, &used).status.message(),
             Catch::EndsWith("--gemms: " + path +
                             ": is for NVIDIA A100 with cuBLASLt 1, and this is a fake with 1 "
                             "(piperun --tune-gemms on this machine)"));
  const auto wrong = std::make_shared<GemmTable>(GemmMachine{.gpu = "a fake", .library = 1});
  for (const MatmulShape& shape : AllProducts(*program.job)) wrong->Add(shape, Algorithm(77), 1);
  CHECK_THAT(Run(program, wrong, &used).status.message(), Catch::EndsWith("no such algorithm"));
  CHECK(used.algorithms.empty());
}

TEST_CASE("a table that cannot be read is an error with its name") {
  const Folder folder;
  const std::string path = folder / "gemms";
  CHECK_THAT(GemmTable::Open(path).status().message(), Catch::StartsWith(path + ": "));
  CHECK_THAT(GemmTable::Open(folder / ".").status().message(), Catch::StartsWith(folder / "."));
  std::ofstream(path) << "piperun gemms 1\n";
  CHECK(GemmTable::Open(path).status().message() == path + ": ends in line 2 (after a checksum)");
}

}  // namespace pp
