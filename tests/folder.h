// A test's own folder, which is removed with the object.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace pp {

class Folder {
 public:
  Folder() {
    std::string pattern = std::filesystem::temp_directory_path() / "test.XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& name) const { return path_ / name; }
  // The names in a folder of it, sorted.
  std::vector<std::string> List(const std::string& name = "") const;
  // Writes a text of `letters` letters, with some regularity; returns its path.
  std::string WriteText(const std::string& name, int letters) const {
    std::ofstream out(path_ / name);
    for (int i = 0; i < letters; ++i) out << static_cast<char>(' ' + i * i % 29);
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::vector<std::string> Folder::List(const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_ / name))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// A text of lines of 0 to 10 letters, shared by all tests of a program: documents with an end
// token.
inline std::string SharedLines() {
  static const Folder folder;
  static const std::string path = [] {
    std::ofstream out(folder / "lines.txt");
    for (int i = 0; i < 600; ++i) {
      for (int j = 0; j < i * i % 11; ++j) out << static_cast<char>(' ' + (i + j * j) % 29);
      out << '\n';
    }
    return folder / "lines.txt";
  }();
  return path;
}

// A text shared by all tests of a program.
inline std::string SharedText() {
  static const Folder folder;
  static const std::string path = folder.WriteText("text.txt", 4000);
  return path;
}

}  // namespace pp
