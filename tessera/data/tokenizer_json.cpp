#include <algorithm>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/read_file.h"
#include "tessera/base/text.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/tokenizer_parts.h"

namespace tessera::data {

using nlohmann::json;

// Reads the content of one tokenizer.json, part by part. Every member throws DataError.
class TokenizerReader {
 public:
  TokenizerReader(std::string_view text, const std::string& source) : source_(source) {
    try {
      root_ = json::parse(text);
    } catch (const json::exception& error) {
      refuse("is no JSON", "a tokenizer.json as Hugging Face's tokenizers writes it");
    }
  }

  Tokenizer run() {
    try {
      return read();
    } catch (const json::exception& error) {
      refuse(std::string("has a part of the wrong type: ") + error.what(),
             "a tokenizer.json as Hugging Face's tokenizers writes it");
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& accepted) const {
    TESSERA_THROW(DataError, "[tokenizer] \"", source_, "\" ", what, "; accepted: ", accepted);
  }

  // Refuses members of `part` that are not listed: they could change what the tokenizer does.
  void verify_keys(const json& part, const std::string& name, const std::vector<std::string>& known) const {
    for (const auto& [key, value] : part.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        refuse("has \"" + key + "\" in its " + name, base::join(known, ", "));
      }
    }
  }

  static bool is_absent(const json& part, const char* key) { return !part.contains(key) || part[key].is_null(); }

  // The value of a member, or what it is when absent.
  template <typename T>
  static T value_of(const json& part, const char* key, T otherwise) {
    return is_absent(part, key) ? std::move(otherwise) : part[key].get<T>();
  }

  Tokenizer read() {
    if (!root_.is_object() || is_absent(root_, "model")) {
      refuse("has no \"model\"", "a tokenizer.json as Hugging Face's tokenizers writes it");
    }
    verify_keys(root_, "file",
                {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                 "decoder", "model"});
    for (const char* key : {"truncation", "padding"}) {
      if (!is_absent(root_, key)) {
        refuse(std::string("has a ") + key, "null there: sequences are cut by the data, not by the tokenizer");
      }
    }
    read_normalizer();
    const auto options = read_model_options();
    const auto tokens = read_vocabulary();
    auto added = read_added_tokens();
    auto steps = read_pre_tokenizer();
    read_decoder();
    read_post_processor(root_.value("post_processor", json()));
    return Tokenizer(std::make_shared<TokenizerParts>(TokenizerParts{
        AddedTokens(std::move(added)), PreTokenizer(std::move(steps)), Bpe(tokens, read_merges(), options),
        std::move(bytes_), std::move(is_special_), std::move(ids_), std::move(prefix_), std::move(suffix_)}));
  }

  void read_normalizer() const {
    const auto normalizer = root_.value("normalizer", json());
    const bool is_empty = normalizer.is_null() || (normalizer.value("type", "") == "Sequence" &&
                                                   normalizer.value("normalizers", json::array()).empty());
    if (!is_empty) {
      refuse("has the normalizer " + normalizer.value("type", "without a type"),
             "no normalizer (null), as in byte-level BPE");
    }
  }

  BpeOptions read_model_options() const {
    const auto& model = root_["model"];
    const auto type = model.value("type", std::string(model.contains("merges") ? "BPE" : "without a type"));
    if (type != "BPE") {
      refuse("has the model " + type, "BPE");
    }
    verify_keys(model, "model",
                {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                 "byte_fallback", "ignore_merges", "vocab", "merges"});
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (const auto text = value_of<std::string>(model, key, ""); !text.empty()) {
        refuse(std::string("has ") + key + " \"" + text + "\"", "none, as in byte-level BPE");
      }
    }
    if (value_of(model, "dropout", 0.0) > 0) {
      refuse("has dropout in its model", "none: equal texts have equal tokens");
    }
    if (value_of(model, "byte_fallback", false)) {
      refuse("has byte_fallback", "byte-level BPE, in which every byte is a token");
    }
    return {.ignore_merges = value_of(model, "ignore_merges", false)};
  }

  void add(int32_t id, const std::string& text, std::string bytes, bool is_special) {
    constexpr int32_t kLargest = 1 << 24;
    if (id < 0 || id >= kLargest) {
      refuse("gives \"" + text + "\" the id " + std::to_string(id), "ids from 0 to " + std::to_string(kLargest - 1));
    }
    const auto at = static_cast<size_t>(id);
    if (at >= bytes_.size()) {
      bytes_.resize(at + 1);
      is_special_.resize(at + 1);
    }
    const auto known = ids_.find(text);
    if (bytes_[at] && (known == ids_.end() || known->second != id)) {
      refuse("gives the id " + std::to_string(id) + " to two tokens, one is \"" + text + "\"", "one token for each id");
    }
    bytes_[at] = std::move(bytes);
    is_special_[at] = is_special;
    ids_[text] = id;
  }

  // Tokens whose text is made of byte characters; others, which no merge can make, have ids all the same.
  std::vector<std::pair<std::string, int32_t>> read_vocabulary() {
    std::vector<std::pair<std::string, int32_t>> tokens;
    for (const auto& [text, value] : root_["model"].at("vocab").get_ref<const json::object_t&>()) {
      const auto id = value.get<int32_t>();
      const auto bytes = bytes_of_characters(text);
      if (bytes && !bytes->empty()) {
        tokens.emplace_back(*bytes, id);
      }
      add(id, text, bytes.value_or(text), false);
    }
    return tokens;
  }

  int32_t id_of(const std::string& text, const std::string& where) const {
    const auto found = ids_.find(text);
    if (found == ids_.end()) {
      refuse("has \"" + text + "\" in " + where + ", which its vocabulary lacks",
             "merges of tokens that are in the vocabulary");
    }
    return found->second;
  }

  std::vector<Merge> read_merges() const {
    std::vector<Merge> merges;
    for (const auto& each : root_["model"].at("merges").get_ref<const json::array_t&>()) {
      const auto where = "merge " + std::to_string(merges.size());
      std::vector<std::string> pair =
          each.is_string() ? base::split(each.get<std::string>(), ' ') : each.get<std::vector<std::string>>();
      if (pair.size() != 2) {
        refuse("has " + where + " of " + std::to_string(pair.size()) + " parts: " + each.dump(),
               "\"a b\" or [\"a\", \"b\"]");
      }
      merges.push_back({id_of(pair[0], where), id_of(pair[1], where), id_of(pair[0] + pair[1], where)});
    }
    return merges;
  }

  std::vector<AddedToken> read_added_tokens() {
    std::vector<AddedToken> all;
    for (const auto& each : root_.value("added_tokens", json::array())) {
      verify_keys(each, "added token", {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token{
          .id = each.at("id").get<int32_t>(),
          .content = each.at("content").get<std::string>(),
          .single_word = value_of(each, "single_word", false),
          .lstrip = value_of(each, "lstrip", false),
          .rstrip = value_of(each, "rstrip", false),
          .normalized = value_of(each, "normalized", true),
          .special = value_of(each, "special", false),
      };
      if (const auto known = ids_.find(token.content); known != ids_.end() && known->second != token.id) {
        refuse("gives the added token \"" + token.content + "\" the id " + std::to_string(token.id) + ", its model " +
                   std::to_string(known->second),
               "one id for each token");
      }
      add(token.id, token.content, token.content, token.special);
      all.push_back(std::move(token));
    }
    return all;
  }

  std::vector<PreTokenizerStep> read_pre_tokenizer() {
    std::vector<PreTokenizerStep> steps;
    add_steps(root_.value("pre_tokenizer", json()), steps);
    if (!is_byte_level_) {
      refuse("has no ByteLevel pre-tokenizer", "byte-level BPE, such as GPT-2's and Llama 3's");
    }
    return steps;
  }

  void add_steps(const json& part, std::vector<PreTokenizerStep>& steps) {
    const auto type = part.is_object() ? part.value("type", "") : std::string("null");
    const auto name = "pre-tokenizer " + type;
    if (type == "Sequence") {
      verify_keys(part, name, {"type", "pretokenizers"});
      for (const auto& each : part.at("pretokenizers")) {
        add_steps(each, steps);
      }
    } else if (is_byte_level_) {
      refuse("has the " + name + " behind ByteLevel", "ByteLevel as the last pre-tokenizer");
    } else if (type == "ByteLevel") {
      verify_keys(part, name, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      add_byte_level(part, steps);
    } else if (type == "Split") {
      verify_keys(part, name, {"type", "pattern", "behavior", "invert"});
      steps.push_back(read_split(part));
    } else if (type == "Digits") {
      verify_keys(part, name, {"type", "individual_digits"});
      const bool is_single = value_of(part, "individual_digits", false);
      steps.push_back({.pattern = Pattern(R"(\p{N})"),
                       .behavior = is_single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
    } else {
      refuse("has the " + name, "ByteLevel, Split, Digits and Sequences of them");
    }
  }

  void add_byte_level(const json& part, std::vector<PreTokenizerStep>& steps) {
    is_byte_level_ = true;
    if (value_of(part, "add_prefix_space", true)) {
      steps.push_back({.kind = PreTokenizerStep::Kind::kPrefixSpace});
    }
    if (value_of(part, "use_regex", true)) {
      steps.push_back(PreTokenizer::gpt2_split());
    }
  }

  PreTokenizerStep read_split(const json& part) const {
    const auto& pattern = part.at("pattern");
    if (!pattern.is_object() || pattern.size() != 1 || !(pattern.contains("Regex") || pattern.contains("String"))) {
      refuse("has the pattern " + pattern.dump() + " in a Split", "{\"Regex\": ...} or {\"String\": ...}");
    }
    const auto behavior = part.at("behavior").get<std::string>();
    const bool is_removed = behavior == "Removed", is_contiguous = behavior == "Contiguous";
    if (behavior != "Isolated" && !is_removed && !is_contiguous) {
      refuse("has the behavior " + behavior + " in a Split", "Isolated, Removed, Contiguous");
    }
    return {
        .pattern = pattern.contains("Regex") ? Pattern(pattern["Regex"].get<std::string>())
                                             : Pattern::literal(pattern["String"].get<std::string>()),
        .behavior = is_removed      ? SplitBehavior::kRemoved
                    : is_contiguous ? SplitBehavior::kContiguous
                                    : SplitBehavior::kIsolated,
        .is_inverted = value_of(part, "invert", false),
    };
  }

  void read_decoder() const {
    const auto decoder = root_.value("decoder", json());
    const auto type = decoder.is_object() ? decoder.value("type", "") : std::string("null");
    if (type != "ByteLevel") {
      refuse("has the decoder " + type, "ByteLevel");
    }
  }

  // Later processors add around what earlier ones made.
  void read_post_processor(const json& part) {
    if (part.is_null()) {
      return;
    }
    const auto type = part.value("type", "");
    if (type == "Sequence") {
      for (const auto& each : part.at("processors")) {
        read_post_processor(each);
      }
    } else if (type == "TemplateProcessing") {
      read_template(part);
    } else if (type == "RobertaProcessing") {
      prefix_.insert(prefix_.begin(), part.at("cls").at(1).get<int32_t>());
      suffix_.push_back(part.at("sep").at(1).get<int32_t>());
    } else if (type != "ByteLevel") {
      refuse("has the post-processor " + type,
             "ByteLevel, TemplateProcessing, RobertaProcessing and Sequences of them");
    }
  }

  void read_template(const json& part) {
    std::vector<int32_t> before, after;
    bool has_text = false;
    for (const auto& each : part.at("single")) {
      if (each.contains("Sequence")) {
        has_text = true;
        continue;
      }
      const auto name = each.at("SpecialToken").at("id").get<std::string>();
      const auto ids = part.at("special_tokens").at(name).at("ids").get<std::vector<int32_t>>();
      auto& side = has_text ? after : before;
      side.insert(side.end(), ids.begin(), ids.end());
    }
    if (!has_text) {
      refuse("has a TemplateProcessing without the sequence", "a \"single\" with one {\"Sequence\": ...}");
    }
    prefix_.insert(prefix_.begin(), before.begin(), before.end());
    suffix_.insert(suffix_.end(), after.begin(), after.end());
  }

  const std::string& source_;
  json root_;
  std::vector<std::optional<std::string>> bytes_;
  std::vector<bool> is_special_;
  ska::flat_hash_map<std::string, int32_t> ids_;
  std::vector<int32_t> prefix_, suffix_;
  bool is_byte_level_ = false;
};

Tokenizer Tokenizer::parse(std::string_view text, const std::string& source) {
  return TokenizerReader(text, source).run();
}

Tokenizer Tokenizer::read(const std::string& path) {
  const auto text = base::try_read_file(path);
  TESSERA_CHECK_AS(DataError, text, "[tokenizer] cannot read \"", path, "\"; accepted: the path of a tokenizer.json");
  return parse(*text, path);
}

}  // namespace tessera::data
