// Training of adapters alone: the same numbers however the model is cut, nothing else changed, no
// memory for what is frozen, and files that another run, or peft, takes up.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/files/safetensors.h"
#include "runtime/run/export.h"
#include "tests/saved_run.h"

namespace pp {
namespace {

namespace fs = std::filesystem;

const char* const kAll = "r=4,alpha=6,all-linear";
const char* const kSome[] = {"r=4,alpha=6,c_attn", "r=4,alpha=6,q_proj,v_proj"};  // by llama

Lora LoraOf(const std::string& text) {
  Lora lora;
  REQUIRE(ReadLora(text, &lora).message() == "");
  return lora;
}

struct Options {
  std::string lora, passes, adapter, to;
  bool merged = false, sequence_parallel = false;
  double learning_rate = 1e-2;
};

Outcome RunLora(const ModelConfig& model, const Layout& layout, const Folder& folder,
                const Options& given, Steps steps = {}) {
  std::optional<ModelFolder> opened;
  steps.learning_rate = given.learning_rate;
  steps.plan = [&](CompileOptions* compile) {
    compile->passes = given.passes;
    compile->job.sequence_parallel = given.sequence_parallel;
    if (!given.lora.empty()) compile->job.lora = LoraOf(given.lora);
  };
  steps.options = [&](TrainOptions* train) {
    train->adapter = given.adapter;
    train->export_merged = given.merged;
    if (given.to.empty()) return;
    auto result = ModelFolder::Open(given.to);
    REQUIRE(result.status().message() == "");
    train->exports = true;
    train->export_to = &opened.emplace(std::move(*result));
  };
  return Run(model, layout, folder, steps);
}

std::string Bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<float> Numbers(const std::string& path, const std::string& name) {
  auto file = Safetensors::Open(path);
  REQUIRE(file.status().message() == "");
  const SafetensorsEntry* entry = file->Find(name);
  INFO(name);
  REQUIRE(entry != nullptr);
  std::vector<float> numbers((entry->end - entry->begin) / 4);
  REQUIRE(file->ReadFloats(name, entry->shape, numbers.data()).ok());
  return numbers;
}

TEST_CASE("adapters have the same bits whatever the schedule") {
  const bool llama = GENERATE(false, true);
  const std::string lora = GENERATE(0, 1) == 0 ? std::string(kAll) : kSome[llama];
  const ModelConfig model = TinyModel(llama);
  const Folder folder;
  const Outcome one = RunLora(model, {"gpipe"}, folder, {.lora = lora});
  REQUIRE(one.status.message() == "");
  CHECK(one.numbers[10] < one.numbers[0]);
  const auto run = [&](const Layout& layout, const std::string& passes, bool sequence = false) {
    INFO(layout.Text() << " " << passes << " " << lora);
    Outcome other = RunLora(model, layout, folder,
                            {.lora = lora, .passes = passes, .sequence_parallel = sequence});
    REQUIRE(other.status.message() == "");
    return other;
  };
  for (const auto& [layout, passes] : {std::pair<Layout, std::string>{{"1f1b", 2}, ""},
                                       {{"1f1b", 4}, "mario"},
                                       {{"1f1b", 2}, "split-backward"},
                                       {{"zb-v", 2}, ""},
                                       {{"interleaved", 2}, ""}})
    CHECK(run(layout, passes).numbers == one.numbers);
  const Outcome replicas = run({"1f1b", 2, 1, 2}, "");
  CHECK(run({"zb-v", 2, 1, 2, 1}, "").numbers == replicas.numbers);
  for (const Outcome& other : {replicas, run({"1f1b", 2, 2}, ""), run({"zb-v", 2, 2}, "", true),
                               run({"chimera", 2, 2, 2, 1}, "")})
    for (size_t i = 0; i < one.numbers.size(); ++i)
      CHECK(other.numbers[i] == Approx(one.numbers[i]).epsilon(2e-5));
}

// Sizes here are multiples of kAlign.
TEST_CASE("what is frozen has no gradient and no moments, to the byte") {
  for (const bool llama : {false, true})
    for (const auto& [scheme, zero, copies] :
         {std::tuple{"1f1b", 0, 1}, {"1f1b", 0, 2}, {"1f1b", 1, 2}, {"zb-v", 0, 1}}) {
      CompileOptions compile = {.scheme = scheme,
                                .shape = {2, 4, 0},
                                .replicas = copies,
                                .zero = zero,
                                .job = {.model = TinyModel(llama), .sequence_length = 8}};
      compile.job.lora = LoraOf(kSome[llama]);
      const auto program = Compile(compile);
      REQUIRE(program.status().message() == "");
      // Of a layer, r (in + out) for each of the adapters.
      const int64_t layer = 4 * (llama ? 4 * (24 + 24 + 24 + 12) : 4 * (24 + 3 * 24));
      for (const DeviceList& list : program->lists) {
        int64_t wgrad = 0, moments = 0, weights = 0, all = 0;
        for (const Region& region : list.regions) {
          if (region.kind == Kind::kWgrad) wgrad += region.bytes;
          if (region.kind == Kind::kOptimizer) moments += region.bytes;
          if (region.kind == Kind::kWeights) weights += region.bytes;
        }
        CHECK(wgrad == 2 * layer);
        if (zero == 0) CHECK(moments == 2 * wgrad);
        if (zero == 1) CHECK((moments >= wgrad && moments < 2 * wgrad));
        for (const int stage : program->StagesOf(&list - program->lists.data()))
          for (const Tensor& tensor : LayoutStage(*program->job, stage).tensors)
            all += (tensor.bytes() + kAlign - 1) / kAlign * kAlign;
        CHECK((weights <= all && weights > all - 2 * kAlign));
        for (const Instruction& i : list.body) CHECK(i.op != Op::kReduceTied);
      }
    }
}

// A split backward keeps the gradients that a weight half will read, and no others: of the outputs
// of queries, keys and values, or of what the down projection adds to.
TEST_CASE("work has what is read of it, to the byte") {
  constexpr int64_t kTokens = 8, kStream = kTokens * 24 * 4, kQkv = kTokens * (24 + 2 * 12) * 4;
  Job job = {TinyModel(true), 1, kTokens, {1, 2, 1}};
  const int64_t whole = LayoutStage(job, 1).work_bytes;
  job.lora = LoraOf(kSome[1]);
  CHECK(LayoutStage(job, 1).work_bytes == 2 * kQkv);
  job.lora = LoraOf("r=4,alpha=8,down_proj");
  CHECK(LayoutStage(job, 1).work_bytes == 2 * kStream);
  job.lora = LoraOf(kAll);
  CHECK(LayoutStage(job, 1).work_bytes < whole);
  CHECK(LayoutStage(job, 1).work_bytes > 2 * (kQkv + 2 * kStream));
}

TEST_CASE("a stage without adapters has nothing to reduce, and trains none") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  const Outcome one = RunLora(model, {"gpipe"}, folder, {.lora = kAll});
  Steps steps;
  const auto ends = [&](const char* scheme, int replicas, int zero) {
    steps.learning_rate = 1e-2;
    steps.plan = [&](CompileOptions* compile) {
      compile->job.lora = LoraOf(kAll);
      compile->job.layers_per_stage = {0, 4, 0, 0};
    };
    return Run(model, {scheme, 4, 1, replicas, zero}, folder, steps);
  };
  const Outcome alone = ends("1f1b", 1, 0);
  REQUIRE(alone.status.message() == "");
  CHECK(alone.numbers == one.numbers);
  CHECK(ends("zb-h1", 1, 0).numbers == one.numbers);
  const Outcome sharded = ends("1f1b", 2, 1);
  REQUIRE(sharded.status.message() == "");
  CHECK(sharded.numbers == ends("1f1b", 2, 0).numbers);
}

// The model of seed 1 with B = 0 until it is trained: what has no adapter stays as it was, and the
// rest is W + alpha / r B A.
TEST_CASE("a merged export has what was frozen, and the adapters added") {
  const bool llama = GENERATE(false, true);
  const ModelConfig model = TinyModel(llama);
  const Folder folder;
  for (const Layout& layout : {Layout{"1f1b", 2}, Layout{"zb-v", 2, 2}}) {
    INFO(layout.Text());
    const Options adapter = {.lora = kAll, .to = folder / "adapter"};
    const Options merged = {.lora = kAll, .to = folder / "merged", .merged = true};
    REQUIRE(RunLora(model, layout, folder, adapter).status.message() == "");
    REQUIRE(RunLora(model, layout, folder, merged).status.message() == "");
    auto source = WeightSource::New(1);
    const std::string all = folder / "merged/model.safetensors";
    const std::string mine = folder / "adapter/adapter_model.safetensors";
    Job job = {model, 1, 8, {4}};
    for (const Tensor& tensor : LayoutStage(job, 0).tensors) {
      std::vector<float> whole(tensor.elements());
      REQUIRE(source->Read(tensor, whole.data()).ok());
      for (const Slice& slice : SlicesOf(tensor, {})) {
        INFO(slice.name);
        const std::vector<float> there = Numbers(all, slice.name);
        const std::string stem = slice.name.substr(0, slice.name.rfind('.'));
        const bool linear =
            tensor.matrix && (stem.ends_with("_proj") || stem.find(".c_") != stem.npos);
        const int64_t width = slice.shape.back();
        std::vector<float> a, b;
        if (linear) a = Numbers(mine, "base_model.model." + stem + ".lora_A.weight");
        if (linear) b = Numbers(mine, "base_model.model." + stem + ".lora_B.weight");
        double change = 0, error = 0;
        for (int64_t i = 0; i < slice.rows; ++i)
          for (int64_t j = 0; j < slice.cols; ++j) {
            const float before = whole[slice.at + i * tensor.cols + j];
            const int64_t row = slice.row + i, col = slice.col + j;
            const float after = there[row * width + col];
            if (!linear && before != after) FAIL_CHECK("a frozen weight has changed");
            if (!linear) continue;
            const int64_t out = llama ? row : col, in = llama ? col : row;
            const int64_t inputs = static_cast<int64_t>(a.size()) / 4;
            double sum = 0;
            for (int64_t k = 0; k < 4; ++k) sum += double{b[out * 4 + k]} * a[k * inputs + in];
            error += std::pow(after - before - 1.5 * sum, 2);
            change += std::pow(1.5 * sum, 2);
          }
        if (linear) CHECK(change > 0);
        if (linear) CHECK(std::sqrt(error) < 1e-3 * std::sqrt(change));
      }
    }
    fs::remove_all(folder / "adapter");
    fs::remove_all(folder / "merged");
  }
}

TEST_CASE("an exported adapter is what another run starts from") {
  const bool llama = GENERATE(false, true);
  const ModelConfig model = TinyModel(llama);
  const Folder folder;
  const auto file = [&](const char* name) { return folder / name + "/adapter_model.safetensors"; };
  REQUIRE(RunLora(model, {"1f1b", 2}, folder, {.lora = kSome[llama], .to = folder / "one"})
              .status.message() == "");
  CHECK(folder.List("one") ==
        std::vector<std::string>{"adapter_config.json", "adapter_model.safetensors"});
  std::ifstream stream(folder / "one/adapter_config.json");
  const auto config = nlohmann::json::parse(stream);
  CHECK(config["r"] == 4);
  CHECK(config["lora_alpha"] == 6);
  CHECK(config["fan_in_fan_out"] == !llama);
  CHECK(config["target_modules"].size() == (llama ? 2 : 1));
  // Without a step size it stays as it is, however it is cut.
  for (const Layout& layout : {Layout{"gpipe"}, Layout{"zb-v", 2, 2}, Layout{"1f1b", 2, 2, 2, 1}}) {
    INFO(layout.Text());
    const Options again = {
        .lora = kSome[llama], .adapter = folder / "one", .to = folder / "two", .learning_rate = 0};
    REQUIRE(RunLora(model, layout, folder, again).status.message() == "");
    CHECK(Bytes(file("one")) == Bytes(file("two")));
    fs::remove_all(folder / "two");
  }
}

TEST_CASE("an adapter that does not fit is refused by name") {
  const Folder folder;
  const ModelConfig model = TinyModel(true);
  REQUIRE(RunLora(model, {"1f1b", 2}, folder, {.lora = kSome[1], .to = folder / "one"})
              .status.message() == "");
  const std::string path = folder / "one/adapter_config.json";
  const auto config = nlohmann::json::parse(Bytes(path));
  const auto refused = [&](const std::string& key, const nlohmann::json& value) {
    nlohmann::json changed = config;
    changed[key] = value;
    std::ofstream(path) << changed;
    const Outcome outcome =
        RunLora(model, {"gpipe"}, folder, {.lora = kSome[1], .adapter = folder / "one"});
    std::ofstream(path) << config;
    return outcome.status.message();
  };
  CHECK(refused("r", 4) == "");
  // As peft writes the names where there are few, but for one that is missing.
  nlohmann::json full;
  for (int layer = 0; layer < model.layers; ++layer)
    for (const std::string target : config["target_modules"])
      full.push_back(fmt::format("model.layers.{}.{}.{}", layer,
                                 target.find("_proj") == 1 ? "self_attn" : "mlp", target));
  CHECK(refused("target_modules", full) == "");
  full.erase(full.size() - 1);
  CHECK(refused("target_modules", full).starts_with("--adapter: " + path + ": target_modules is "));
  // What is missing, or has another shape, is named with the option.
  const std::string file = folder / "one/adapter_model.safetensors";
  fs::rename(file, file + ".kept");
  CHECK(refused("r", 4).starts_with("--adapter: " + file + ": cannot be read: "));
  fs::rename(file + ".kept", file);
  const std::string whole = Bytes(file);
  std::ofstream(file, std::ios::binary) << whole.substr(0, whole.size() - 4) << "\xff\xff\xff\x7f";
  CHECK_THAT(refused("r", 4), Catch::StartsWith("--adapter: " + file + ": tensor base_model.") &&
                                  Catch::EndsWith(" has nan (finite numbers)"));
  std::ofstream(file, std::ios::binary) << whole;
  for (const auto& [key, value] :
       std::map<std::string, nlohmann::json>{{"r", 8},
                                             {"lora_alpha", 4},
                                             {"target_modules", {"q_proj"}},
                                             {"bias", "all"},
                                             {"use_dora", true},
                                             {"use_rslora", true},
                                             {"fan_in_fan_out", true},
                                             {"rank_pattern", {{"q_proj", 2}}},
                                             {"modules_to_save", {"lm_head"}},
                                             {"init_lora_weights", "pissa"},
                                             {"peft_type", "IA3"},
                                             {"something_new", 1}}) {
    INFO(key);
    CHECK(refused(key, value).starts_with("--adapter: " + path + ": " + key + " is "));
  }
  CHECK(RunLora(model, {"gpipe"}, folder, {.lora = kAll, .adapter = folder / "one"})
            .status.message()
            .starts_with("--adapter: " + path + ": target_modules is "));
  CHECK(RunLora(model, {"gpipe"}, folder, {.adapter = folder / "one"}).status.message() ==
        "--adapter: " + (folder / "one") +
            ": the plan has no adapters (a plan that was compiled with --lora)");
}

TEST_CASE("a training of adapters that continues equals one that was not interrupted") {
  const bool llama = GENERATE(false, true);
  const ModelConfig model = TinyModel(llama);
  for (const Layout& second :
       {Layout{"1f1b", 2}, Layout{"zb-v", 2, 1, 2, 1}, Layout{"1f1b", 2, 2}}) {
    INFO(second.Text());
    const Folder folder, other;
    const Options options = {.lora = kSome[llama], .to = folder / "whole", .merged = true};
    const Outcome whole = RunLora(model, {"1f1b", 2}, folder, options);
    REQUIRE(
        RunLora(model, {"1f1b", 2}, other, {.lora = kSome[llama]}, {.until = 3, .save_every = 3})
            .status.message() == "");
    // What is frozen comes from the checkpoint, as what is trained does.
    const Options rest = {.lora = kSome[llama], .to = other / "rest", .merged = true};
    const Outcome after = RunLora(model, second, other, rest, {.resume = true});
    REQUIRE(after.status.message() == "");
    const bool same = second.tp * second.dp == 1;
    for (size_t i = 0; i < after.numbers.size(); ++i)
      CHECK(after.numbers[i] ==
            Approx(whole.numbers[6 + i]).epsilon(same ? 0 : 2e-5).margin(same ? 0 : 1e-9));
    if (same)
      CHECK(Bytes(folder / "whole/model.safetensors") == Bytes(other / "rest/model.safetensors"));
  }
}

TEST_CASE("a checkpoint of another --lora is refused, in both directions") {
  const ModelConfig model = TinyModel(true);
  const auto refusal = [&](const std::string& first, const std::string& second) {
    const Folder folder;
    REQUIRE(RunLora(model, {"1f1b", 2}, folder, {.lora = first}, {.until = 3, .save_every = 3})
                .status.message() == "");
    const std::string text =
        RunLora(model, {"1f1b", 2}, folder, {.lora = second}, {.resume = true}).status.message();
    const std::string begin = "--resume: " + (folder / "saves/step-00000003") + ": was trained ";
    return text.starts_with(begin) ? text.substr(begin.size()) : text;
  };
  CHECK(refusal(kSome[1], "") ==
        "with --lora r=4,alpha=6,q_proj,v_proj (the plan is compiled "
        "without --lora)");
  CHECK(refusal("", kAll) ==
        "without --lora (the plan is compiled with --lora r=4,alpha=6,all-linear)");
  CHECK(refusal(kSome[1], "r=8,alpha=6,q_proj,v_proj") ==
        "with --lora r=4,alpha=6,q_proj,v_proj (the plan is compiled with --lora "
        "r=8,alpha=6,q_proj,v_proj)");
}

TEST_CASE("a checkpoint has the frozen weights, and moments of the adapters alone") {
  Job job = {TinyModel(true), 1, 8, {4}};
  int64_t frozen = 0, trained = 0;
  job.lora = LoraOf(kAll);
  for (const Tensor& tensor : LayoutStage(job, 0).tensors)
    (tensor.adapter ? trained : frozen) += tensor.bytes();
  CHECK(trained == 4 * 4 * 4 * (48 + 36 + 36 + 48 + 64 + 64 + 64));  // layers, r, bytes, in + out
  CHECK(CheckpointBytes(job) == frozen + 3 * trained);
  job.lora = {};
  CHECK(CheckpointBytes(job) == 3 * frozen);
}

}  // namespace
}  // namespace pp
