// A training that is saved, and continues under another cut, equals one that never stopped; and no
// damaged checkpoint is ever loaded.
#include <fmt/format.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "compiler/compile.h"
#include "runtime/run/states.h"
#include "tests/folder.h"
#include "tests/kept_report.h"
#include "tests/models.h"

namespace pp {
namespace {

namespace fs = std::filesystem;

// With dropout, and a vocabulary that does not divide.
ModelConfig TinyModel(bool llama) {
  ModelConfig model = Gpt2Model({.vocab_size = 61,
                                 .max_positions = 8,
                                 .hidden_size = 24,
                                 .layers = 4,
                                 .heads = 4,
                                 .intermediate_size = 40});
  if (llama) {
    model.family = FindFamily("llama");
    model.embedding_dropout = model.residual_dropout = 0;
    model.kv_heads = 2;
    model.head_dim = 6;
    model.tied = false;
  }
  return model;
}

// The latest checkpoint that is whole, as a run finds it.
Result<Checkpoint> Find(const std::string& dir, const ModelConfig& model,
                        std::vector<std::string>* notes) {
  for (const int64_t step : SavedSteps(dir)) {
    Result<Checkpoint> found = OpenCheckpoint(StepFolder(dir, step), model, 0, 1);
    if (found.ok()) return found;
    CHECK(found.status().code() == Code::kInvalid);
    notes->push_back(found.status().message());
  }
  return Status::Invalid("none");
}

struct Shape {
  const char* scheme;
  int pp = 1, tp = 1, dp = 1, zero = 0;
  std::optional<bool> clip = {};

  std::string Text() const {
    return std::string(scheme) + " pp " + std::to_string(pp) + " tp " + std::to_string(tp) +
           " dp " + std::to_string(dp) + " zero " + std::to_string(zero);
  }
};

struct Outcome {
  Status status;
  std::vector<double> numbers;  // loss and norm of each step
  std::vector<std::string> notes;
  int64_t saved = 0;
  std::string unsaved;
};

struct Steps {
  int until = 6;
  int save_every = 0;
  bool resume = false;
  std::optional<uint64_t> seed;
  std::string data;  // by default the folder's
  bool new_data = false;
  int sequence_length = 8;
  double learning_rate = 1e-3;
  std::function<void(int64_t)> on_step;
};

std::string ReplaceAll(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// A manifest, whose last 18 bytes become its right checksum.
void WriteWithSum(const std::string& path, const std::string& text) {
  const std::string body = text.substr(0, text.size() - 18);
  std::ofstream(path, std::ios::binary)
      << body << fmt::format("\n{:016x}\n", XXH3_64bits(body.data(), body.size()));
}

Outcome Run(const ModelConfig& model, const Shape& shape, const Folder& folder,
            const Steps& steps) {
  const auto program = Compile({.scheme = shape.scheme,
                                .shape = {shape.pp, 8 / shape.dp, 0},
                                .replicas = shape.dp,
                                .zero = shape.zero,
                                .clip = shape.clip,
                                .model = model,
                                .micro_batch_size = 1,
                                .tp = shape.tp,
                                .sequence_length = steps.sequence_length});
  INFO(program.status().message());
  REQUIRE(program.ok());
  Outcome outcome;
  TrainOptions options;
  options.data = steps.data.empty() ? folder.WriteText("data.txt", 4000) : steps.data;
  options.new_data = steps.new_data;
  options.optimizer.steps = steps.until;
  options.optimizer.learning_rate = steps.learning_rate;
  options.optimizer.warmup_steps = 4;
  options.optimizer.grad_clip = program->clip ? 1 : 0;
  options.seed = steps.seed;
  options.resume = steps.resume;
  options.save_every = steps.save_every;
  options.on_note = [&](const std::string& note) { outcome.notes.push_back(note); };
  std::optional<SaveFolder> saves;
  if (steps.resume || steps.save_every > 0) {
    options.save = folder / "saves";
    auto opened = SaveFolder::Open(options.save);
    REQUIRE(opened.status().message() == "");
    saves.emplace(std::move(*opened));
    options.save_to = &*saves;
  }
  options.on_step = [&](const StepReport& step) {
    if (steps.on_step) steps.on_step(step.step);
    return Status();
  };
  const KeptReport report = TrainAndKeep(*program, options);
  outcome.status = report.status;
  outcome.saved = report.saved_step;
  outcome.unsaved = report.unsaved.message();
  for (const StepReport& step : report.steps) {
    outcome.numbers.push_back(step.loss);
    outcome.numbers.push_back(step.grad_norm.value_or(0));
  }
  return outcome;
}

double Furthest(const std::vector<double>& a, const std::vector<double>& b, size_t from) {
  REQUIRE(a.size() == b.size() + from);
  double most = 0;
  for (size_t i = 0; i < b.size(); ++i)
    if (a[from + i] != b[i])
      most = std::max(most, std::abs(a[from + i] - b[i]) / std::abs(a[from + i]));
  return most;
}

TEST_CASE("saved under one cut, resumed under another") {
  const Shape one = {"gpipe"};
  const std::pair<Shape, Shape> pairs[] = {
      {{"gpipe"}, {"1f1b", 4}},
      {{"zb-v", 2}, {"interleaved", 2}},
      {{"hanayo", 2}, {"gpipe"}},
      {{"1f1b", 2}, {"1f1b", 2, 2}},
      {{"1f1b", 2, 2}, {"zb-v", 2}},
      {{"gpipe", 1, 2}, {"gpipe", 1, 4}},
      {{"1f1b", 2}, {"1f1b", 2, 1, 2, 1}},
      {{"1f1b", 2, 1, 2, 1}, {"gpipe"}},
      {{"chimera", 2}, {"1f1b", 4}},
      {{"1f1b", 2, 2, 2, 1}, {"chimera", 2, 1, 2}},
      {{"gpipe", 1, 1, 4, 1}, {"gpipe", 1, 2, 2, 1}},
      {{"dualpipe", 2}, {"fold-aiao", 2, 1, 2, 1}},
  };
  for (const bool llama : {false, true}) {
    const ModelConfig model = TinyModel(llama);
    for (const auto& [before, after] : pairs) {
      if (llama && std::max(before.tp, after.tp) > 2) continue;
      INFO(before.Text() << " -> " << after.Text());
      const Folder folder;
      const Outcome whole = Run(model, one, folder, {.seed = 5});
      const Outcome first = Run(model, before, folder, {.until = 4, .save_every = 2, .seed = 5});
      REQUIRE(first.status.message() == "");
      CHECK(first.saved == 4);
      const Outcome second = Run(model, after, folder, {.save_every = 2, .resume = true});
      REQUIRE(second.status.message() == "");
      CHECK(second.saved == 6);
      CHECK(second.notes ==
            std::vector<std::string>{"continues from " + StepFolder(folder / "saves", 4)});
      CHECK(SavedSteps(folder / "saves") == std::vector<int64_t>{6, 4});
      const auto alone = [](const Shape& s) {
        return s.tp * s.dp == 1 && std::string(s.scheme) != "chimera" &&
               std::string(s.scheme) != "dualpipe";
      };
      const double far = Furthest(whole.numbers, second.numbers, 8);
      CHECK(far < 1e-5);
      if (alone(before) && alone(after)) CHECK(far == 0);
    }
  }
}

// Without a norm the last stage steps first, and one device has both ends of the tied tensor.
TEST_CASE("saved without a norm, with both ends on one device") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  const Shape shape = {"zb-v", 2, 1, 1, 0, false};
  const Outcome whole = Run(model, shape, folder, {.seed = 5});
  REQUIRE(Run(model, shape, folder, {.until = 4, .save_every = 4, .seed = 5}).status.ok());
  const Outcome second = Run(model, {"1f1b", 4, 1, 1, 0, false}, folder, {.resume = true});
  REQUIRE(second.status.message() == "");
  CHECK(Furthest(whole.numbers, second.numbers, 8) == 0);
}

// PipeDream updates its weights once per micro-batch; AdamW counts all updates.
TEST_CASE("updates are counted, not steps") {
  const Folder folder;
  ModelConfig model = TinyModel(true);
  const Shape pipedream = {"pipedream", 1};
  REQUIRE(Run(model, pipedream, folder, {.until = 4, .save_every = 4, .seed = 5}).status.ok());
  std::vector<std::string> notes;
  const auto checkpoint = Find(folder / "saves", model, &notes);
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->manifest.updates == 4 * 8);
  const Outcome whole = Run(model, pipedream, folder, {.seed = 5});
  const Outcome second = Run(model, pipedream, folder, {.resume = true});
  REQUIRE(second.status.message() == "");
  CHECK(Furthest(whole.numbers, second.numbers, 8) == 0);  // one device has no older weights
}

// One byte of every 97 of every file; a truncated or missing file; another model.
TEST_CASE("a checkpoint that is not whole is not used, and the one before it is") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  const Shape shape = {"1f1b", 2, 2};
  REQUIRE(Run(model, shape, folder, {.until = 4, .save_every = 2, .seed = 5}).status.ok());
  const std::string saves = folder / "saves", last = StepFolder(saves, 4);
  const auto found = [&](std::vector<std::string>* notes) {
    const auto checkpoint = Find(saves, model, notes);
    return checkpoint.ok() ? checkpoint->manifest.step : 0;
  };
  std::vector<std::string> notes;
  REQUIRE(found(&notes) == 4);
  REQUIRE(notes.empty());
  const std::vector<std::string> files = {"manifest.json", "rank-0", "rank-1", "rank-2", "rank-3"};
  for (const std::string& name : files) {
    const std::string path = last + "/" + name;
    const auto size = static_cast<int64_t>(fs::file_size(path));
    for (int64_t at = name == "manifest.json" ? 0 : size % 97; at < size;
         at += name == "manifest.json" ? 1
               : at > size - 64        ? 1
                                       : size / 40) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const char byte = static_cast<char>(file.get());
      const auto put = [&](char value) {
        file.seekp(at);
        file.put(value);
        file.flush();
      };
      put(static_cast<char>(byte ^ 4));
      notes.clear();
      INFO(name << " byte " << at);
      CHECK(found(&notes) == 2);
      REQUIRE(notes.size() == 1);
      CHECK(notes[0].starts_with(path));
      put(byte);
    }
    fs::rename(path, path + ".gone");
    CHECK(found(&notes) == 2);
    fs::copy_file(path + ".gone", path);
    fs::resize_file(path, size - 1);
    CHECK(found(&notes) == 2);
    fs::remove(path);
    fs::rename(path + ".gone", path);
  }
  notes.clear();
  CHECK(found(&notes) == 4);

  // A part of another checkpoint.
  fs::copy_file(last + "/rank-1", last + "/kept");
  fs::copy_file(StepFolder(saves, 2) + "/rank-1", last + "/rank-1",
                fs::copy_options::overwrite_existing);
  CHECK(found(&notes) == 2);
  CHECK(notes.back() == last + "/rank-1: belongs to another checkpoint");
  const Outcome went_on = Run(model, shape, folder, {.until = 4, .save_every = 2, .resume = true});
  REQUIRE(went_on.status.message() == "");
  CHECK(went_on.notes.front().starts_with("not used: " + last));
  CHECK(went_on.saved == 4);  // beside the damaged one, which is all that is left of that training
  CHECK(fs::exists(saves + "/.damaged-step-00000004/rank-3"));
  CHECK(SavedSteps(saves) == std::vector<int64_t>{4, 2});
  CHECK(found(&notes) == 4);

  ModelConfig other = model;
  other.heads = 2;
  const Outcome foreign = Run(other, shape, folder, {.resume = true});
  CHECK(foreign.status.code() == Code::kInvalid);
  CHECK(foreign.status.message() ==
        "--resume: " + last + "/manifest.json: n_head is 4 (the plan's model has 2)");
  CHECK(Run(model, shape, folder, {.resume = true, .seed = 6}).status.message() ==
        "--seed: 6 (" + last + " has 5)");
  CHECK(Run(model, shape, folder, {.until = 4, .resume = true}).status.message() ==
        "--steps: 4 (" + last + " has 4 already)");
  fs::remove_all(saves);
  CHECK(Run(model, shape, folder, {.resume = true}).status.message() ==
        "--resume: " + saves + ": has no checkpoint (one that --save wrote)");
}

TEST_CASE("together the ranks verify every byte, and each only its share") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  REQUIRE(Run(model, {"1f1b", 2}, folder, {.until = 2, .save_every = 2, .seed = 5}).status.ok());
  const std::string last = StepFolder(folder / "saves", 2);
  const auto shard = ShardReader::Open(last + "/rank-1");
  REQUIRE(shard.ok());
  for (const StateRecord& record : shard->records()) {
    std::fstream file(last + "/rank-1", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(record.offset);
    const char byte = static_cast<char>(file.get());
    file.seekp(record.offset);
    file.put(static_cast<char>(byte ^ 1)).flush();
    int found = 0;
    for (int rank = 0; rank < 3; ++rank) found += !OpenCheckpoint(last, model, rank, 3).ok();
    CHECK(found == 1);
    file.seekp(record.offset);
    file.put(byte).flush();
  }
}

TEST_CASE("only damage falls back to the checkpoint before") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  const Shape shape = {"1f1b", 2};
  REQUIRE(Run(model, shape, folder, {.until = 4, .save_every = 2, .seed = 5}).status.ok());
  const std::string last = StepFolder(folder / "saves", 4), part = last + "/rank-1";
  fs::rename(part, part + ".kept");
  fs::create_symlink("rank-1", part);  // leads to itself
  const Outcome loop = Run(model, shape, folder, {.resume = true});
  CHECK(loop.status.message() == "--resume: " + part +
                                     ": cannot be read: Too many levels of symbolic links "
                                     "(a rank's part of a checkpoint)");
  CHECK(loop.status.code() == Code::kFailed);
  fs::remove(part);
  fs::rename(part + ".kept", part);
  auto manifest = ReadManifest(last);
  REQUIRE(manifest.ok());
  CHECK(manifest->format == kManifestFormat);
  std::string text;
  {
    std::ifstream file(last + "/manifest.json", std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  const std::string newer = ReplaceAll(text, "\"format\": 1", "\"format\": 2");
  WriteWithSum(last + "/manifest.json", newer);
  CHECK(Run(model, shape, folder, {.resume = true}).status.message() ==
        "--resume: " + last + "/manifest.json: is of format 2 (this piperun reads 1)");
}

TEST_CASE("a training goes on with its data and its options, or says what is not as it was") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  const Shape shape = {"1f1b", 2};
  const Outcome whole = Run(model, shape, folder, {.seed = 5});
  REQUIRE(Run(model, shape, folder, {.until = 4, .save_every = 4, .seed = 5}).status.ok());
  const std::string last = StepFolder(folder / "saves", 4), data = folder / "data.txt";
  const auto on = [&](Steps steps) {
    steps.resume = true;
    return Run(model, shape, folder, steps);
  };
  // The same data that has grown.
  const std::string grown = folder.WriteText("grown.txt", 4100);
  const Outcome refused = on({.data = grown});
  CHECK(refused.status.code() == Code::kInvalid);
  CHECK(refused.status.message() == "--data: " + grown + ": is not the data that " + last +
                                        " was trained with (--new-data, if that is meant)");
  const Outcome taken = on({.until = 5, .data = grown, .new_data = true});
  REQUIRE(taken.status.message() == "");
  CHECK(taken.notes[1] == grown + " is not the data that " + last + " was trained with");
  // That saved step 5.
  fs::remove_all(StepFolder(folder / "saves", 5));
  const Outcome other = on({.until = 6, .learning_rate = 5e-4});
  REQUIRE(other.status.message() == "");
  CHECK(other.notes == std::vector<std::string>{"continues from " + last,
                                                "--lr: 0.0005 (before " + last + ": 0.001)"});
  fs::remove_all(StepFolder(folder / "saves", 6));
  // 4 steps of 8 sequences of 8 tokens: 256 tokens, which end 37 sequences of 7 but for 3.
  const Outcome shorter = on({.sequence_length = 7});
  REQUIRE(shorter.status.message() == "");
  CHECK(shorter.notes[1] == "goes on at token 259 of the data, after 32 sequences of 8");
  const auto manifest = ReadManifest(StepFolder(folder / "saves", 6));
  REQUIRE(manifest.ok());
  CHECK(manifest->sequences == 37 + 2 * 8);
  CHECK(manifest->sequence_length == 7);
  fs::remove_all(StepFolder(folder / "saves", 6));
  // A checkpoint of before.
  std::string text;
  {
    std::ifstream file(last + "/manifest.json", std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  nlohmann::json old = nlohmann::json::parse(text.substr(0, text.size() - 18));
  for (const char* key : {"data", "sequence_length", "options"}) REQUIRE(old.erase(key) == 1);
  WriteWithSum(last + "/manifest.json", old.dump(1) + std::string(18, ' '));
  const Outcome from_old = on({.data = grown});
  REQUIRE(from_old.status.message() == "");
  CHECK(from_old.notes[1] == last + " does not say which data it was trained with");
}

TEST_CASE("what is not of a checkpoint stays") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  const Shape shape = {"1f1b", 2};
  fs::create_directories(folder / "saves/step-00000009");  // a user's
  std::ofstream(folder / "saves/step-00000009/notes.txt") << "mine";
  CHECK(SavedSteps(folder / "saves").empty());
  REQUIRE(Run(model, shape, folder, {.until = 4, .save_every = 2, .seed = 5}).status.ok());
  std::ofstream(StepFolder(folder / "saves", 2) + "/notes.txt") << "mine";
  const Outcome on = Run(model, shape, folder, {.until = 10, .save_every = 1, .resume = true});
  CHECK(on.status.message() == "");
  CHECK(fs::exists(folder / "saves/step-00000009/notes.txt"));
  CHECK(folder.List("saves/step-00000002") == std::vector<std::string>{"notes.txt"});
  const std::vector<std::string> words = {
      StepFolder(folder / "saves", 2) + " stays: it has files that are not of its checkpoint",
      "--save: step 9 is not saved: " + StepFolder(folder / "saves", 9) +
          ": cannot be written: Directory not empty"};
  for (const std::string& word : words) {
    INFO(word);
    CHECK(std::count(on.notes.begin(), on.notes.end(), word) == 1);
  }
  CHECK(on.saved == 10);
  CHECK(SavedSteps(folder / "saves") == std::vector<int64_t>{10, 8});
}

TEST_CASE("a disk without room for the checkpoints is found before the first step") {
  const Folder folder;
  auto saves = SaveFolder::Open(folder / "saves");
  REQUIRE(saves.ok());
  CHECK(saves->CheckRoom(1, 1000).ok());
  const std::string error = saves->CheckRoom(7, int64_t{1} << 60).message();
  CHECK(
      error.starts_with((folder / "saves") +
                        ": 3 more checkpoints of 1152921504606846976 bytes each at a time, and "));
  CHECK(error.ends_with(" bytes are free (a larger disk)"));
  const Job job{TinyModel(true), 1, 8, {4}};
  int64_t elements = 0;
  for (const Tensor& tensor : LayoutStage(job, 0).tensors) elements += tensor.elements();
  CHECK(CheckpointBytes(job) == 12 * elements);
}

// A disk that is full, or broken, while step 4 is saved.
TEST_CASE("a checkpoint that cannot be saved is given up, and the training goes on") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  for (const int full : {4, 6}) {
    fs::create_directories(folder / "saves");
    // A folder where a rank's part is to be.
    const std::string in_the_way = SavingFolder(folder / "saves", full) + "/rank-1";
    Steps steps{.save_every = 2, .seed = 5};
    steps.on_step = [&](int64_t step) {
      if (step == full - 3) fs::create_directories(in_the_way);
    };
    const Outcome run = Run(model, {"1f1b", 2}, folder, steps);
    CHECK(run.status.message() == "");
    const std::string word = "--save: step " + std::to_string(full) +
                             " is not saved: " + in_the_way + ": cannot be written: Is a directory";
    CHECK(run.notes == std::vector<std::string>{word});
    CHECK(run.unsaved == (full == 6 ? word : ""));
    CHECK(run.saved == (full == 6 ? 4 : 6));
    CHECK(SavedSteps(folder / "saves") ==
          (full == 6 ? std::vector<int64_t>{4, 2} : std::vector<int64_t>{6, 2}));
    CHECK_FALSE(fs::exists(SavingFolder(folder / "saves", full)));
    fs::remove_all(folder / "saves");
  }
}

TEST_CASE("numbers that are not finite are not saved") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  const Outcome run = Run(model, {"1f1b", 2, 1, 1, 0, false}, folder,
                          {.until = 2, .save_every = 2, .seed = 5, .learning_rate = 3e38});
  CHECK(run.status.code() == Code::kFailed);
  CHECK_THAT(run.status.message(), Catch::Matches("rank [01]: step 2: .*: element [0-9]+ is .*"));
  CHECK(SavedSteps(folder / "saves").empty());
}

TEST_CASE("one run saves into a folder, and clears what another has not finished") {
  const Folder folder;
  fs::create_directories(folder / "saves/.saving-00000007");
  auto mine = SaveFolder::Open(folder / "saves");
  REQUIRE(mine.ok());
  CHECK_FALSE(fs::exists(folder / "saves/.saving-00000007"));
  CHECK(SaveFolder::Open(folder / "saves").status().message() ==
        (folder / "saves") + ": another run is saving there (another folder)");
}

}  // namespace
}  // namespace pp
