// What a run exports: complete, with Hugging Face's names and shapes, the same whoever trained it;
// and the folder that it is written into.
#include "runtime/run/export.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <xxhash.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "compiler/compile.h"
#include "runtime/files/weight_files.h"
#include "tests/folder.h"
#include "tests/kept_report.h"
#include "tests/models.h"

namespace pp {
namespace {

namespace fs = std::filesystem;

const SourceFiles kConfig = {{"config.json", "{}\n"}};

ModelConfig TinyModel(const char* family, bool tied) {
  ModelConfig model = Gpt2Model({.vocab_size = 61,
                                 .max_positions = 8,
                                 .hidden_size = 24,
                                 .layers = 4,
                                 .heads = 4,
                                 .intermediate_size = 40});
  model.tied = tied;
  if (std::string(family) == "llama") {
    model.family = FindFamily("llama");
    model.embedding_dropout = model.residual_dropout = model.attention_dropout = 0;
    model.kv_heads = 2;
    model.head_dim = 6;
    model.attention_bias = model.mlp_bias = true;
  }
  return model;
}

struct Shape {
  const char* scheme;
  int pp = 1, tp = 1, dp = 1, zero = 0;
  std::vector<int> layers = {};
  RankOrder order = RankOrder::kTpPpDp;
};

// The loss of each step.
std::vector<double> TrainCut(const ModelConfig& model, const Shape& cut, const Folder& folder,
                             const std::string& weights, const std::string& to) {
  auto program = Compile(
      {.scheme = cut.scheme,
       .shape = {cut.pp, 8 / cut.dp, 0},
       .replicas = cut.dp,
       .zero = cut.zero,
       .rank_order = cut.order,
       .job = {
           .model = model, .micro_batch_size = 1, .layers_per_stage = cut.layers, .tp = cut.tp}});
  INFO(program.status().message());
  REQUIRE(program.ok());
  TrainOptions options;
  options.data = {folder.WriteText("data.txt", 1000)};
  options.optimizer.steps = 3;
  options.optimizer.learning_rate = 1e-3;
  options.weights = weights;
  options.bytes = true;
  std::optional<ModelFolder> opened;
  if (!to.empty()) {
    auto result = ModelFolder::Open(to);
    REQUIRE(result.status().message() == "");
    opened.emplace(std::move(*result));
    options.exports = true;
    options.export_to = &*opened;
  }
  const KeptReport report = TrainAndKeep(*program, options);
  REQUIRE(report.status.message() == "");
  std::vector<double> losses;
  for (const StepReport& step : report.steps) losses.push_back(step.loss);
  return losses;
}

// All elements of a model, in model order.
std::vector<float> Numbers(const ModelConfig& model, const std::string& dir) {
  std::vector<float> all;
  auto source = WeightSource::Open(dir, model);
  REQUIRE(source.status().message() == "");
  for (const Tensor& tensor : LayoutStage({model, 1, 8, {4}}, 0).tensors) {
    all.resize(all.size() + tensor.elements());
    REQUIRE(source->Read(tensor, all.data() + all.size() - tensor.elements()).ok());
  }
  return all;
}

TEST_CASE("an exported model does not depend on how it was cut, and trains on in any other way") {
  for (const char* family : {"gpt2", "llama", "mistral", "qwen2", "qwen3"})
    for (const bool tied : {true, false}) {
      const Folder folder;
      const ModelConfig model = TinyModel(family, tied);
      TrainCut(model, {"gpipe"}, folder, "", folder / "one");
      const std::vector<float> one = Numbers(model, folder / "one");
      const std::vector<double> on = TrainCut(model, {"1f1b", 2}, folder, folder / "one", "");
      for (const Shape& cut :
           {Shape{"zb-v", 2}, Shape{"1f1b", 4}, Shape{"1f1b", 2, 2}, Shape{"chimera", 2, 1, 2},
            Shape{"interleaved", 2, 2, 2, 1}, Shape{"1f1b", 4, 1, 1, 0, {0, 1, 3, 0}},
            Shape{"zb-v", 2, 2, 1, 0, {0, 2, 2, 0}}}) {
        INFO(family << " " << cut.scheme << " tp " << cut.tp << " dp " << cut.dp);
        TrainCut(model, cut, folder, "", folder / "cut");
        const std::vector<float> numbers = Numbers(model, folder / "cut");
        REQUIRE(numbers.size() == one.size());
        if (cut.tp * cut.dp == 1) {
          CHECK(std::memcmp(numbers.data(), one.data(), one.size() * 4) == 0);
        } else {
          double difference = 0, size = 0;
          for (size_t i = 0; i < one.size(); ++i) {
            difference += std::pow(double{numbers[i]} - one[i], 2);
            size += std::pow(double{one[i]}, 2);
          }
          CHECK(std::sqrt(difference / size) < 1e-5);
        }
        if (cut.dp > 1) {
          Shape other = cut;
          other.order = RankOrder::kTpDpPp;
          TrainCut(model, other, folder, "", folder / "other");
          CHECK(Numbers(model, folder / "other") == numbers);
          fs::remove_all(folder / "other");
        }
        const std::vector<double> here = TrainCut(model, cut, folder, folder / "one", "");
        for (size_t i = 0; i < on.size(); ++i) CHECK(here[i] == Approx(on[i]).epsilon(1e-5));
        fs::remove_all(folder / "cut");
      }
    }
}

TEST_CASE("a run that fails exports nothing") {
  const Folder folder;
  {
    auto opened = ModelFolder::Open(folder / "model");
    REQUIRE(opened.ok());
    REQUIRE(opened->Begin({.files = kConfig}, std::vector<ModelFolderEntry>{{"a", {2, 3}}}).ok());
    CHECK(folder.List().size() == 1);  // the temporary folder
    CHECK_FALSE(fs::exists(folder / "model"));
  }
  CHECK(folder.List().empty());
}

// Without a gradient norm nobody looks at the last update.
TEST_CASE("a model that is not finite is not exported") {
  const Folder folder;
  const auto program = Compile({.scheme = "1f1b",
                                .shape = {2, 8, 0},
                                .clip = false,
                                .job = {.model = TinyModel("gpt2", true), .micro_batch_size = 1}});
  REQUIRE(program.ok());
  auto opened = ModelFolder::Open(folder / "model");
  REQUIRE(opened.ok());
  TrainOptions options;
  options.data = {folder.WriteText("data.txt", 1000)};
  options.optimizer.steps = 1;
  options.optimizer.learning_rate = 3e38;
  options.optimizer.weight_decay = 10;
  options.optimizer.grad_clip = 0;
  options.exports = true;
  options.export_to = &*opened;
  const TrainReport report = Train(*program, options);
  CHECK(report.status.code() == Code::kFailed);
  CHECK_THAT(
      report.status.message(),
      Catch::Matches("rank 0: transformer\\.wte\\.weight: element [0-9]+ is (nan|-?inf) .*"));
  CHECK_FALSE(fs::exists(folder / "model"));
}

// A model of three files, of which the second is the longest.
const std::vector<ModelFolderEntry> kThree = {{"a", {3}}, {"b", {3000}}, {"c", {4}}};

Status WriteAllOf(ModelFolder* model) {
  Status status = model->Start();
  const std::vector<float> numbers(3000, 7);
  for (size_t e = 0; e < kThree.size(); ++e) {
    const Status written = model->Write(e, 0, numbers.data(), kThree[e].shape[0]);
    if (status.ok()) status = written;
  }
  return status.ok() ? model->Finish() : status;
}

ModelFolder Three(const std::string& path) {
  auto opened = ModelFolder::Open(path);
  REQUIRE(opened.status().message() == "");
  REQUIRE(opened->Begin({.files = kConfig, .file_bytes = 100}, kThree).message() == "");
  return std::move(*opened);
}

TEST_CASE("what was trained stays, whatever fails, and is said") {
  const Folder folder;
  const std::string path = folder / "model";
  {
    ModelFolder model = Three(path);
    rlimit limit{}, small{.rlim_cur = 5000, .rlim_max = RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    const Status first = WriteAllOf(&model), again = WriteAllOf(&model);
    setrlimit(RLIMIT_FSIZE, &limit);
    CHECK(first.message() == again.message());
    CHECK(model.WithRemains(first).message() ==
          path +
              ".unfinished/model-00002-of-00003.safetensors: cannot be written: File too large "
              "(what was trained is in " +
              path + ".unfinished, all but model-00002-of-00003.safetensors, which is incomplete)");
  }
  CHECK(folder.List("model.unfinished").size() == 5);
  // The next run does not take what an earlier one has trained.
  {
    ModelFolder model = Three(path);
    CHECK(model.note() == path +
                              ".earlier is what an earlier run trained and could not finish "
                              "exporting");
    CHECK(WriteAllOf(&model).message() == "");
    CHECK(model.WithRemains(Status::Failed("later")).message() == "later");
  }
  CHECK(folder.List("model.earlier").size() == 5);
  CHECK(folder.List("model").size() == 5);
  // What was never trained is removed, also by the next run; what is not ours is not.
  { Three(folder / "other"); }
  CHECK(folder.List() == std::vector<std::string>{"model", "model.earlier"});
  fs::create_directory(folder / "other.unfinished");
  std::ofstream(folder / "other.unfinished/model.safetensors") << std::string(20, 0);
  CHECK(Three(folder / "other").note().empty());
  fs::create_directory(folder / "other.unfinished");
  std::ofstream(folder / "other.unfinished/model.bin") << "mine";
  CHECK_FALSE(ModelFolder::Open(folder / "other").ok());
  CHECK(folder.List("other.unfinished") == std::vector<std::string>{"model.bin"});
  fs::remove_all(folder / "other.unfinished");
}

TEST_CASE("a folder that somebody removes while it is written is written again") {
  const Folder folder;
  const std::string path = folder / "model";
  for (const char* removed : {"model.unfinished", "model.unfinished/config.json"}) {
    fs::remove_all(path);
    ModelFolder model = Three(path);
    fs::remove_all(folder / removed);
    CHECK(WriteAllOf(&model).message() == "");
    CHECK(folder.List("model").size() == 5);
  }
  fs::remove_all(path);
  ModelFolder model = Three(path);
  REQUIRE(model.Start().ok());
  fs::remove_all(folder / "model.unfinished");
  CHECK_FALSE(model.Finish().ok());
  CHECK(WriteAllOf(&model).message() == "");
  CHECK(folder.List("model").size() == 5);
  // Whatever has its name by then is somebody else's.
  fs::remove_all(path);
  {
    ModelFolder model = Three(path);
    fs::remove_all(folder / "model.unfinished");
    const ModelFolder theirs = Three(path);
    CHECK(WriteAllOf(&model).message() == "");
  }
  CHECK(folder.List("model").size() == 5);
  // Nor is what is somebody else's removed.
  {
    const ModelFolder other = Three(folder / "other");
    std::ofstream(folder / "other.unfinished/mine") << "mine";
  }
  CHECK(folder.List("other.unfinished") == std::vector<std::string>{"mine"});
}

TEST_CASE("places that cannot be had at the end are refused at the beginning") {
  const Folder folder;
  for (const std::string& path : std::vector<std::string>{".", "..", "./", folder / "."})
    CHECK(ModelFolder::Open(path).status().message() ==
          path + ": cannot get another folder's name (a new folder)");
  CHECK(ModelFolder::Open("/proc/sys/fs/binfmt_misc").status().code() == Code::kInvalid);
  // A link to an empty folder stays one.
  fs::create_directory(folder / "real");
  fs::create_directory_symlink(folder / "real", folder / "link");
  {
    ModelFolder model = Three(folder / "link");
    CHECK(WriteAllOf(&model).message() == "");
  }
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(folder.List("real").size() == 5);
}

TEST_CASE("a large model is in several files with an index") {
  const Folder folder;
  const std::vector<ModelFolderEntry> entries = {
      {"a", {2, 3}}, {"b", {4}}, {"c.d", {5}}, {"e", {1}}};
  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6};
  auto opened = ModelFolder::Open(folder / "model/");
  REQUIRE(opened.ok());
  REQUIRE(opened->Begin({.files = kConfig, .file_bytes = 24}, entries).ok());
  REQUIRE(opened->Start().ok());
  for (size_t e = 0; e < entries.size(); ++e) {
    int64_t count = 1;
    for (const int64_t size : entries[e].shape) count *= size;
    REQUIRE(opened->Write(e, count - 1, numbers.data() + count - 1, 1).ok());
    REQUIRE(opened->Write(e, 0, numbers.data(), count - 1).ok());
  }
  REQUIRE(opened->Finish().ok());
  CHECK(folder.List("model") ==
        std::vector<std::string>{
            "config.json", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
            "model-00003-of-00003.safetensors", "model.safetensors.index.json"});
  auto files = WeightFiles::Open(folder / "model");
  REQUIRE(files.status().message() == "");
  for (const ModelFolderEntry& entry : entries) {
    const int64_t rows = entry.shape.size() == 2 ? entry.shape[0] : 1, cols = entry.shape.back();
    std::vector<float> read(rows * cols);
    REQUIRE(files->ReadFloats(entry.name, entry.shape, {0, 0, rows, cols, cols}, read.data()).ok());
    CHECK(read == std::vector<float>(numbers.begin(), numbers.begin() + rows * cols));
  }
  // The index alone names the same; one of its files has less.
  const auto by_index = WeightFiles::Open(folder / "model/model.safetensors.index.json");
  REQUIRE(by_index.ok());
  CHECK((by_index->Has("a") && by_index->Has("e")));
  CHECK(*WeightFiles::Digest(folder / "model/model.safetensors.index.json") ==
        *WeightFiles::Digest(folder / "model"));
  const auto one = WeightFiles::Open(folder / "model/model-00001-of-00003.safetensors");
  REQUIRE(one.ok());
  CHECK((one->Has("a") && !one->Has("e")));
  float last[2] = {};
  REQUIRE(files->ReadFloats("a", {2, 3}, {0, 2, 2, 1, 1}, last).ok());  // a column
  CHECK((last[0] == 3 && last[1] == 6));

  CHECK(ModelFolder::Open(folder / "model").status().message() ==
        (folder / "model") + ": exists already (a new folder)");
  CHECK(ModelFolder::Open(folder / "new/one/model").ok());
  CHECK(folder.List("new/one").empty());  // it was not begun
  CHECK(ModelFolder::Open("/proc/nowhere/model").status().message() ==
        "/proc/nowhere: cannot be made: No such file or directory");
  const auto digest = WeightFiles::Digest(folder / "model");
  REQUIRE(digest.ok());

  // An index that is wrong.
  const std::string index = folder / "model/model.safetensors.index.json";
  const auto error = [&](const std::string& text) {
    std::ofstream(index) << text;
    return WeightFiles::Open(folder / "model").status().message();
  };
  CHECK(error("{}") == index + ": has no weight_map (an index of safetensors files)");
  CHECK(error(R"({"weight_map": {"a": "../a"}})") ==
        index + ": tensor a is in \"../a\" (a file of the same folder)");
  CHECK(error(R"({"weight_map": {"a": 7}})") ==
        index + ": tensor a is in 7 (a file of the same folder)");
  CHECK(WeightFiles::Digest(folder / "model").ok());
  fs::remove(folder / "model/model-00002-of-00003.safetensors");
  CHECK_FALSE(error(R"({"weight_map": {"b": "model-00002-of-00003.safetensors"}})").empty());
}

// What PyTorch's .to(torch.bfloat16) makes of them.
TEST_CASE("bf16 is the nearest, and the even one of two") {
  const std::vector<std::pair<float, float>> rounded = {
      {1, 1},
      {0x1.008p0f, 0x1.00p0f},     // half way: to 1.00, whose last bit is 0
      {0x1.018p0f, 0x1.02p0f},     // not to 1.01, which bf16 does not have
      {0x1.03p0f, 0x1.04p0f},      // half way between 1.02 and 1.04
      {0x1.01p0f, 0x1.00p0f},      // half way between 1.00 and 1.02
      {0x1.010002p0f, 0x1.02p0f},  // and just above,
      {0x1.00fffep0f, 0x1.00p0f},  // and below
      {-0x1.03p0f, -0x1.04p0f},
      {0x1.ffp0f, 0x2.0p0f},   // carries into the exponent
      {0x1p-133f, 0x1p-133f},  // the least
      {0x1p-134f, 0},          // half of it
      {-0.0f, -0.0f},
      {0x1.fep127f, 0x1.fep127f}};  // the greatest
  const Folder folder;
  std::vector<float> numbers, read(40000), wanted;
  for (size_t i = 0; i < read.size(); ++i) {
    numbers.push_back(rounded[i % rounded.size()].first);
    wanted.push_back(rounded[i % rounded.size()].second);
  }
  const std::vector<ModelFolderEntry> entries = {{"a", {3}}, {"b", {40000}}};
  {
    auto opened = ModelFolder::Open(folder / "model");
    REQUIRE(opened.ok());
    REQUIRE(opened->Begin({.files = kConfig, .dtype = Dtype::kBf16}, entries).ok());
    REQUIRE(opened->Start().ok());
    REQUIRE(opened->Write(0, 0, numbers.data(), 3).ok());
    REQUIRE(opened->Write(1, 17, numbers.data() + 17, 40000 - 17).ok());
    REQUIRE(opened->Write(1, 0, numbers.data(), 17).ok());
    REQUIRE(opened->Finish().message() == "");
    auto files = WeightFiles::Open(folder / "model");
    REQUIRE(files.ok());
    REQUIRE(files->ReadFloats("b", {40000}, {0, 0, 1, 40000, 40000}, read.data()).ok());
    CHECK(std::memcmp(read.data(), wanted.data(), read.size() * 4) == 0);
  }
  auto opened = ModelFolder::Open(folder / "other");
  REQUIRE(opened.ok());
  REQUIRE(opened->Begin({.files = kConfig, .dtype = Dtype::kBf16}, entries).ok());
  REQUIRE(opened->Start().ok());
  const float more[] = {0x1.ff8p127f, 2, 3};
  CHECK_THAT(opened->Write(0, 0, more, 3).message(),
             Catch::Matches(
                 ".*/other.unfinished/model.safetensors: 3.39.*e.38 is not a number of bf16 .*"));
}

TEST_CASE("a checkpoint of before has no files of its source, which is said") {
  const Folder folder;
  const ModelConfig model = TinyModel("llama", false);
  const auto program = Compile(
      {.scheme = "1f1b", .shape = {2, 8, 0}, .job = {.model = model, .micro_batch_size = 1}});
  REQUIRE(program.ok());
  TrainCut(model, {"gpipe"}, folder, "", folder / "source");
  std::vector<std::string> notes;
  const auto train = [&](int steps, const std::string& weights, const std::string& to) {
    auto saves = SaveFolder::Open(folder / "saves");
    REQUIRE(saves.ok());
    auto exported = ModelFolder::Open(to);
    REQUIRE(exported.ok());
    TrainOptions options;
    options.data = {folder.WriteText("data.txt", 1000)};
    options.bytes = true;
    options.optimizer.steps = steps;
    options.weights = weights;
    options.resume = weights.empty();
    options.save = folder / "saves";
    options.save_to = &*saves;
    options.exports = true;
    options.export_to = &*exported;
    notes.clear();
    options.on_note = [&](const std::string& note) { notes.push_back(note); };
    REQUIRE(Train(*program, options).status.message() == "");
  };
  train(1, folder / "source", folder / "first");
  const std::string last = StepFolder(folder / "saves", 1), path = last + "/manifest.json";
  CHECK(fs::exists(last + "/source-config.json"));
  std::string text;
  {
    std::ifstream file(path, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  nlohmann::json old = nlohmann::json::parse(text.substr(0, text.size() - 18));
  REQUIRE(old.erase("source") == 1);
  const std::string body = old.dump(1);
  std::ofstream(path, std::ios::binary)
      << body << fmt::format("\n{:016x}\n", XXH3_64bits(body.data(), body.size()));
  train(2, "", folder / "second");
  REQUIRE(notes.size() == 2);
  CHECK(notes[0] == "continues from " + last);
  CHECK(notes[1] == last +
                        " is of an older piperun, which did not keep the config.json and the "
                        "tokenizer of --weights: the exported config.json is the plan's");
  // Nor does the next one know.
  train(3, "", folder / "third");
  CHECK(notes.size() == 2);
}

TEST_CASE("halves are widened") {
  const Folder folder;
  const auto write = [&](const char* dtype, const std::vector<uint16_t>& bits) {
    std::string header = std::string(R"({"x":{"dtype":")") + dtype + R"(","shape":[)" +
                         std::to_string(bits.size()) + R"(],"data_offsets":[0,)" +
                         std::to_string(2 * bits.size()) + "]}}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::ofstream out(folder / "model.safetensors", std::ios::binary);
    const uint64_t size = header.size();
    out.write(reinterpret_cast<const char*>(&size), 8) << header;
    out.write(reinterpret_cast<const char*>(bits.data()), static_cast<int64_t>(2 * bits.size()));
    out.close();
    auto files = WeightFiles::Open(folder / "");
    REQUIRE(files.status().message() == "");
    const auto count = static_cast<int64_t>(bits.size());
    std::vector<float> numbers(bits.size());
    REQUIRE(files->ReadFloats("x", {count}, {0, 0, 1, count, count}, numbers.data()).ok());
    return numbers;
  };
  CHECK(write("BF16", {0x3f80, 0xc049, 0x0001, 0x0000, 0x7f80}) ==
        std::vector<float>{1, -3.140625f, 0x1p-133f, 0, INFINITY});
  CHECK(write("F16", {0x3c00, 0xc248, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfc00}) ==
        std::vector<float>{1, -3.140625f, 0x1p-24f, -1023 * 0x1p-24f, 0x1p-14f, 65504, -INFINITY});
  CHECK(std::isnan(write("F16", {0x7e00})[0]));
}

}  // namespace
}  // namespace pp
