// What goes with the weights: which files, what becomes of each that cannot be kept, and the
// exported config.json.
#include "runtime/files/source_files.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <random>

#include "schema/base/json.h"
#include "tests/folder.h"

namespace pp {
namespace {

namespace fs = std::filesystem;

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST_CASE("the files of a tokenizer are read, byte for byte, and no others") {
  const Folder folder;
  const std::vector<std::string> kept = {
      "config.json",     "added_tokens.json",  "chat_template.jinja",     "generation_config.json",
      "merges.txt",      "qwen.tiktoken",      "special_tokens_map.json", "tokenizer.json",
      "tokenizer.model", "tokenizer.model.v3", "tokenizer_config.json",   "vocab.json"};
  const std::string bytes("{}\0\xff\n", 5);
  for (const std::string& name : kept) Write(folder / name, name == "config.json" ? "{}" : bytes);
  for (const char* name : {"README.md", "model.safetensors", "text.txt", "train.py", "optimizer.pt",
                           "model.safetensors.index.json", "trainer_state.json"})
    Write(folder / name, "not kept");
  std::vector<std::string> notes;
  const auto files = ReadSource(folder / "", &notes);
  REQUIRE(files.status().message() == "");
  CHECK(SourceNames(folder / "") == kept);
  REQUIRE(files->size() == kept.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    CHECK((*files)[i].name == kept[i]);
    CHECK((*files)[i].bytes == (i == 0 ? "{}" : bytes));
  }
  CHECK(TotalBytes(*files) == 2 + 11 * 5);
  CHECK(SourceBytes(folder / "") == 2 + 11 * 5);
  CHECK(notes.empty());
  CHECK_FALSE(IsSourceFile("tokenizer/../../elsewhere"));
}

TEST_CASE("each file that cannot be kept is said, in one line") {
  const Folder folder;
  Write(folder / "config.json", R"({"auto_map": {"AutoConfig": "configuration_x.XConfig"}})");
  Write(folder / "configuration_x.py", "");
  Write(folder / "tokenizer_config.json", "{}");
  Write(folder / "tokenizer.json",
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n");
  fs::create_directory(folder / "additional_chat_templates");
  fs::create_symlink("nowhere", folder / "vocab.json");
  REQUIRE(mkfifo((folder / "merges.txt").c_str(), 0600) == 0);
  Write(folder / "tokenizer.model", "");
  fs::resize_file(folder / "tokenizer.model", (64 << 20) + 1);
  std::vector<std::string> notes;
  const auto files = ReadSource(folder / "", &notes);
  REQUIRE(files.status().message() == "");
  CHECK(files->size() == 2);
  REQUIRE(notes.size() == 1);
  for (const char* name :
       {"configuration_x.py", "tokenizer.json: is a Git LFS pointer", "additional_chat_templates",
        "vocab.json: cannot be read: No such file", "merges.txt: is not a regular file",
        "tokenizer.model: 67108865 bytes (a file of a tokenizer of at most"})
    CHECK_THAT(notes[0], Catch::Contains(name));
  CHECK_THAT(notes[0], !Catch::Contains("tokenizer_config"));
  // Without a config.json, or with one that is none, nothing can be exported as it was.
  Write(folder / "config.json", "[]");
  CHECK(ReadSource(folder / "", &notes).status().code() == Code::kInvalid);
  fs::remove(folder / "config.json");
  notes.clear();
  const auto without = ReadSource(folder / "", &notes);
  REQUIRE(without.ok());
  CHECK(without->size() == 1);
  CHECK_THAT(notes[0], !Catch::Contains(".py"));
}

TEST_CASE("an exported config.json is the source's but for the types and the class") {
  const std::string source = R"({
  "architectures": ["LlamaModel"],
  "bos_token_id": 1, "eos_token_id": [2, 3],
  "dtype" : "float16" , "nested": {"dtype": "float16", "architectures": ["x"], "list": [{"a": ","}]},
  "text": "\\\" {[ \"dtype\": :,", "big": 12345678901234567890123, "eps": 1e-05,
  "limit": Infinity, "none": NaN, "torch_dtype":null}
)";
  const std::string exported = ExportedConfig(source, "LlamaForCausalLM", Dtype::kBf16);
  CHECK(exported == R"({
  "architectures": ["LlamaForCausalLM"],
  "bos_token_id": 1, "eos_token_id": [2, 3],
  "dtype" : "bfloat16" , "nested": {"dtype": "float16", "architectures": ["x"], "list": [{"a": ","}]},
  "text": "\\\" {[ \"dtype\": :,", "big": 12345678901234567890123, "eps": 1e-05,
  "limit": Infinity, "none": NaN, "torch_dtype":"bfloat16"}
)");
  const std::string made = ExportedConfig(R"({"model_type":"gpt2"})", "G", Dtype::kFp32);
  const auto parsed = ParseJson(made);
  REQUIRE(parsed.ok());
  CHECK(*parsed == nlohmann::json{{"model_type", "gpt2"},
                                  {"architectures", {"G"}},
                                  {"torch_dtype", "float32"}});
}

using Json = nlohmann::json;

// Any value, with what a reader of texts may stumble over.
Json AnyValue(std::mt19937& random, int depth) {
  const auto word = [&] {
    const char* words[] = {"dtype", "torch_dtype", "architectures", "quantization_config",
                           "a",     "\"}],: \\",   "ø\n",           ""};
    return std::string(words[random() % 8]);
  };
  Json value = random() % 3 == 0 ? Json(nullptr) : random() % 2 == 0 ? Json(word()) : Json(1e-5);
  if (depth == 0 || random() % 3 == 0) return value;
  value = random() % 2 == 0 ? Json::object() : Json::array();
  for (size_t i = random() % 4; i > 0; --i)
    value.is_array() ? value.push_back(AnyValue(random, depth - 1))
                     : static_cast<void>(value[word()] = AnyValue(random, depth - 1));
  return value;
}

TEST_CASE("whatever else a config.json has stays as it was") {
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    Json config = {{"model_type", "gpt2"}};
    config["z"] = AnyValue(random, 3);
    if (Json more = AnyValue(random, 3); more.is_object()) config.update(more);
    const Json exported = Json::parse(
        ExportedConfig(config.dump(static_cast<int>(random() % 3) - 1), "G", Dtype::kBf16));
    config["architectures"] = {"G"};
    config.erase("quantization_config");
    const bool none = !config.contains("dtype") && !config.contains("torch_dtype");
    for (const char* key : {"dtype", "torch_dtype"})
      if (config.contains(key) || (none && key == std::string("torch_dtype")))
        config[key] = "bfloat16";
    CHECK(exported == config);
  }
}

TEST_CASE("a checkpoint's are whole, or an error names the file") {
  const Folder folder;
  const SourceFiles files = {
      {"config.json", "{}"}, {"tokenizer.model", std::string(1000, 7)}, {"merges.txt", ""}};
  auto written = WriteSourceParts(folder / "", files);
  REQUIRE(written.status().message() == "");
  std::vector<SourcePart> parts = *written;
  CHECK(folder.List() == std::vector<std::string>{"source-config.json", "source-merges.txt",
                                                  "source-tokenizer.model"});
  for (const std::string& name : folder.List()) CHECK(IsSourcePart(name));
  CHECK_FALSE(IsSourcePart("source-of-mine.txt"));
  const auto read = ReadSourceParts(folder / "", parts);
  REQUIRE(read.status().message() == "");
  for (size_t i = 0; i < files.size(); ++i) {
    CHECK((*read)[i].name == files[i].name);
    CHECK((*read)[i].bytes == files[i].bytes);
  }
  for (const SourceFile& file : files) {
    const std::string path = folder / SourcePartName(file.name);
    std::string other = file.bytes.empty() ? "x" : file.bytes;
    if (!file.bytes.empty()) other.back() ^= 4;
    Write(path, other);
    CHECK(ReadSourceParts(folder / "", parts).status().code() == Code::kInvalid);
    CHECK_THAT(ReadSourceParts(folder / "", parts).status().message(),
               Catch::Contains(SourcePartName(file.name) + ": damaged"));
    fs::remove(path);
    CHECK(ReadSourceParts(folder / "", parts).status().code() == Code::kInvalid);
    Write(path, file.bytes);
  }
  REQUIRE(ReadSourceParts(folder / "", parts).ok());
  parts[0].name = "../config.json";  // of a manifest that somebody else has written
  Write((folder / "") + "source-..", "");
  CHECK_FALSE(ReadSourceParts(folder / "", parts).ok());
}

}  // namespace
}  // namespace pp
