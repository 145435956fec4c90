// What a run that continues believes, what it says, and what it leaves alone; and saves that fail.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/run/inputs.h"
#include "runtime/run/rank.h"
#include "runtime/run/states.h"
#include "tests/saved_run.h"

namespace pp {
namespace {

namespace fs = std::filesystem;

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
  const Layout shape = {"1f1b", 2};
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
  const std::string newer = ReplaceAll(text, "\"format\": 3", "\"format\": 4");
  WriteWithSum(last + "/manifest.json", newer);
  CHECK(Run(model, shape, folder, {.resume = true}).status.message() ==
        "--resume: " + last + "/manifest.json: is of format 4 (this piperun reads 2 to 3)");
}

TEST_CASE("a training goes on with its data and its options, or says what is not as it was") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  const Layout shape = {"1f1b", 2};
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
  for (const char* key : {"data", "sequence_length", "options", "pass", "sequence"})
    REQUIRE(old.erase(key) == 1);
  WriteWithSum(last + "/manifest.json", old.dump(1) + std::string(18, ' '));
  const Outcome from_old = on({.data = grown});
  REQUIRE(from_old.status.message() == "");
  CHECK(from_old.notes[1] == last + " does not say which data it was trained with");
}

TEST_CASE("a shuffled training goes on in the order of its pass") {
  const ModelConfig model = TinyModel(false);
  const Layout shape = {"1f1b", 2};
  // 20 sequences of 8 tokens: steps of 8, 8 and 4 of them.
  const auto steps = [&](const Folder& folder, int until, bool shuffle, int length = 8) {
    return Steps{.until = until,
                 .save_every = 1,
                 .seed = 5,
                 .data = folder.WriteText("short.txt", 20 * 8 + 1),
                 .sequence_length = length,
                 .options = [=](TrainOptions* t) { t->shuffle = shuffle, t->epochs = 3; }};
  };
  const Folder whole;
  const Outcome all = Run(model, shape, whole, steps(whole, 9, true));
  REQUIRE(all.status.message() == "");
  REQUIRE(all.numbers.size() == 18);
  const Folder ordered;
  CHECK(Run(model, shape, ordered, steps(ordered, 9, false)).numbers != all.numbers);
  // Stopped after each step, and continued under another layout.
  for (int stop = 1; stop < 9; ++stop) {
    INFO("stopped after step " << stop);
    const Folder folder;
    Steps first = steps(folder, 9, true);
    std::atomic<int> requests = 0;
    first.on_step = [&](int64_t step) { requests = step >= stop - 1; };
    const auto options = first.options;
    first.options = [&](TrainOptions* t) { options(t), t->stop_requests = &requests; };
    if (stop == 1) requests = 1;
    Run(model, shape, folder, first);
    const int64_t reached = SavedSteps(folder / "saves")[0];
    Steps second = steps(folder, 9, true);
    second.resume = true;
    const Outcome on = Run(model, {"gpipe", 4}, folder, second);
    if (reached == 9) continue;
    REQUIRE(on.status.message() == "");
    CHECK(on.numbers == std::vector<double>(all.numbers.begin() + 2 * reached, all.numbers.end()));
  }
  // Another order, or other sequences, begin where a pass does.
  for (const int stop : {1, 3}) {
    INFO("saved after step " << stop);
    const bool within = stop == 1;
    const Folder folder;
    Steps first = steps(folder, stop, true);
    first.options = [=](TrainOptions* t) { t->shuffle = true; };  // by steps, of 8 sequences
    if (!within) first.plan = [](CompileOptions* c) { c->shape.microbatches = 20; };
    if (!within) first.until = 1;
    REQUIRE(Run(model, shape, folder, first).status.message() == "");
    const std::string last = StepFolder(folder / "saves", 1);
    const auto error = [&](bool shuffle, int length) {
      Steps on = steps(folder, 9, shuffle, length);
      on.resume = true;
      on.save_every = 100;
      std::string message = Run(model, shape, folder, on).status.message();
      for (const int64_t step : SavedSteps(folder / "saves"))
        if (step > 1) fs::remove_all(StepFolder(folder / "saves", step));
      return message;
    };
    CHECK(error(false, 8) == (within ? "--shuffle: is not given, and " + last +
                                           " is in the middle of a pass with it (only where a pass "
                                           "ends)"
                                     : ""));
    CHECK(error(true, 4) ==
          (within
               ? "--shuffle: the plan's sequences have 4 tokens, and " + last +
                     " is in the middle of a pass over sequences of 8 (another length only where "
                     "a pass ends)"
               : ""));
    CHECK(error(true, 8) == "");
  }
}

TEST_CASE("a training goes on with other batches, by epochs or by steps") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  const Layout shape = {"1f1b", 2};
  // 10 sequences of 8 tokens, the last of 3 targets: steps of 8 and of 2 sequences.
  const std::string data = folder.WriteText("short.txt", 9 * 8 + 4);
  const auto run = [&](int epochs, int until, int microbatches, bool resume, int save_every = 100) {
    return Run(model, shape, folder,
               {.until = until,
                .save_every = save_every,
                .resume = resume,
                .data = data,
                .plan = [=](CompileOptions* c) { c->shape.microbatches = microbatches; },
                .options = [=](TrainOptions* t) { t->epochs = epochs; }});
  };
  const auto position = [&](int64_t step) {
    const auto manifest = ReadManifest(StepFolder(folder / "saves", step));
    REQUIRE(manifest.ok());
    REQUIRE(manifest->pass);
    return std::pair{*manifest->pass, manifest->sequence};
  };
  using Place = std::pair<int64_t, int64_t>;
  const Outcome whole = run(2, 1, 8, false, 1);
  REQUIRE(whole.status.message() == "");
  REQUIRE(whole.numbers.size() == 8);
  CHECK(position(3) == Place{1, 8});
  CHECK(position(4) == Place{2, 0});
  fs::remove_all(StepFolder(folder / "saves", 4));
  const std::string from = StepFolder(folder / "saves", 3);
  // With the same ones it is as if it had not stopped.
  const Outcome same = run(2, 1, 8, true);
  CHECK(same.notes == std::vector<std::string>{"continues from " + from});
  CHECK(same.numbers == std::vector<double>(whole.numbers.begin() + 6, whole.numbers.end()));
  fs::remove_all(StepFolder(folder / "saves", 4));
  // The two that are left of the second pass, and then ten by threes.
  const Outcome other = run(3, 1, 3, true);
  CHECK(other.status.message() == "");
  CHECK(other.planned == 3 + 1 + 4);
  CHECK(position(8) == Place{3, 0});
  CHECK(other.notes ==
        std::vector<std::string>{
            "continues from " + from,
            "--epochs: 3: 5 steps of 3 sequences follow the 3 before, and the learning rate counts "
            "8 in all",
            "sequences a step: 3 (before " + from + ": 8)"});
  fs::remove_all(StepFolder(folder / "saves", 8));
  // By steps, which go from pass to pass.
  const Outcome steps = run(0, 6, 3, true);
  CHECK(steps.status.message() == "");
  CHECK(position(6) == Place{2, 7});
  CHECK(steps.notes[1] == "goes on by --steps (before " + from +
                              ": by --epochs), and the learning rate counts 6 steps");
  const Outcome epochs = run(3, 1, 2, true);
  CHECK(epochs.status.message() == "");
  CHECK(epochs.planned == 6 + 2);
  CHECK(position(8) == Place{3, 0});
  CHECK(run(3, 1, 2, true).status.message() ==
        "--epochs: 3 (" + StepFolder(folder / "saves", 8) + " has 3 already)");
}

// Made by an earlier version: 45 tokens, in sequences of 8 and steps of 2. A pass over them had 5
// sequences, and an epoch 3 steps.
TEST_CASE("an older checkpoint goes on where it was, by its own count") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 45; ++i) text += static_cast<char>(32 + (7 * i * i + 3 * i) % 90);
  std::ofstream(folder / "text.txt") << text;
  const std::string old = "tests/reference/checkpoints/";
  const auto model = LoadModelConfig(old + "config.json");
  REQUIRE(model.ok());
  struct Old {
    const char* counts;
    int64_t epochs, steps;  // of the run that goes on
    Position position;      // where that begins
  };
  for (const Old& one : {Old{"steps", 0, 6, {1, 3}}, Old{"epochs", 2, 6, {1, 2}},
                         Old{"steps", 2, 6, {1, 3}}, Old{"epochs", 0, 7, {1, 2}}}) {
    INFO(one.counts << ", " << one.epochs << " epochs");
    const auto program =
        Compile({.scheme = "gpipe",
                 .shape = {1, 2, 0},
                 .job = {.model = *model, .micro_batch_size = 1, .sequence_length = 8}});
    REQUIRE(program.ok());
    TrainOptions options;
    options.data = {folder / "text.txt"};
    options.epochs = one.epochs;
    options.optimizer.steps = one.steps;
    options.optimizer.learning_rate = 0.01;
    options.resume = true;
    options.save = folder / one.counts;
    fs::remove_all(options.save);
    fs::copy(old + one.counts, options.save, fs::copy_options::recursive);
    fs::permissions(options.save, fs::perms::owner_all);
    auto checkpoint = OpenCheckpoint(StepFolder(options.save, 4), *model, 0, 1);
    REQUIRE(checkpoint.status().message() == "");
    CHECK(!checkpoint->manifest.pass);
    Inputs inputs(*program, options);
    inputs.GoOnFrom(std::move(*checkpoint));
    std::vector<std::string> notes;
    REQUIRE(inputs.Open(&notes).message() == "");
    CHECK(inputs.batches().Before(1).pass == one.position.pass);
    CHECK(inputs.batches().Before(1).sequence == one.position.sequence);
    CHECK(inputs.optimizer().steps == one.steps);
    std::vector<int32_t> first(8);
    REQUIRE(inputs.batches().Inputs(1, 0, 0, first.data()).ok());
    CHECK(first[0] == text[8 * one.position.sequence]);
    auto saves = SaveFolder::Open(options.save);
    REQUIRE(saves.status().message() == "");
    options.save_to = &*saves;
    const KeptReport report = TrainAndKeep(*program, options);
    CHECK(report.status.message() == "");
    CHECK(report.saved_step == one.steps);
  }
}

TEST_CASE("a manifest that nests deeply is damaged") {
  const Folder folder;
  const std::string depth(100000, '[');
  WriteWithSum(folder / "manifest.json", depth + std::string(18, ' '));
  CHECK(
      ReadManifest(folder / "").status().message().ends_with("damaged (a checkpoint's manifest)"));
}

TEST_CASE("what is not of a checkpoint stays") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  const Layout shape = {"1f1b", 2};
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

// A disk that is full, or broken, while step 6 is saved, or the last one.
TEST_CASE("a checkpoint that cannot be saved is given up, and the training goes on") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  for (const int full : {6, 8}) {
    fs::create_directories(folder / "saves");
    // A folder where a rank's part is to be.
    const std::string in_the_way = SavingFolder(folder / "saves", full) + "/rank-1";
    Steps steps{.until = 8, .save_every = 2, .seed = 5};
    // The step begins after this.
    steps.on_step = [&](int64_t step) {
      if (step == full - Rank::kReportsAhead) fs::create_directories(in_the_way);
    };
    const Outcome run = Run(model, {"1f1b", 2}, folder, steps);
    CHECK(run.status.message() == "");
    const std::string word = "--save: step " + std::to_string(full) +
                             " is not saved: " + in_the_way + ": cannot be written: Is a directory";
    CHECK(run.notes == std::vector<std::string>{word});
    CHECK(run.unsaved == (full == 8 ? word : ""));
    CHECK(run.saved == (full == 8 ? 6 : 8));
    CHECK(SavedSteps(folder / "saves") ==
          (full == 8 ? std::vector<int64_t>{6, 4} : std::vector<int64_t>{8, 4}));
    // What the run has not made stays, and nothing else.
    CHECK(folder.List("saves/" + fs::path(SavingFolder("", full)).filename().string()) ==
          std::vector<std::string>{"rank-1"});
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

}  // namespace
}  // namespace pp
