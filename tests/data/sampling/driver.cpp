// Samples tokens with llama.cpp's samplers: one case per line of stdin as `key=value ...`, one line
// of tokens per case on stdout. `record.py` writes the cases.
#include "llama.h"
#include "common.h"
#include "sampling.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

llama_sampler * llama_sampler_init_dry_testing(
    float multiplier, float base, int32_t allowed_length, int32_t last_n,
    const std::vector<std::vector<llama_token>> & breakers);

using Case = std::map<std::string, std::string>;

static float number(const Case & c, const char * key) { return std::stof(c.at(key)); }
static int whole(const Case & c, const char * key) { return std::stoi(c.at(key)); }
static uint32_t seed(const Case & c) { return (uint32_t) std::stoul(c.at("seed")); }

static std::vector<llama_token> tokens(const std::string & text, char separator) {
    std::vector<llama_token> found;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, separator); ) {
        found.push_back(std::stoi(part));
    }
    return found;
}

static std::string text_of(const std::string & hexadecimal) {
    std::string text;
    for (size_t i = 0; i + 1 < hexadecimal.size(); i += 2) {
        text += (char) std::stoi(hexadecimal.substr(i, 2), nullptr, 16);
    }
    return text;
}

static uint64_t mixed(uint64_t x) {  // splitmix64
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static std::vector<llama_token_data> candidates(int n_vocab, uint64_t row, float scale) {
    std::vector<llama_token_data> cur(n_vocab);
    for (int i = 0; i < n_vocab; ++i) {
        const uint64_t word = mixed((row << 32) + (uint64_t) i);
        const double sum = (double) (word >> 32) + (double) (word & 0xFFFFFFFFull);
        cur[i] = { i, (float) ((sum / 4294967296.0 - 1.0) * (double) scale), 0.0f };
    }
    return cur;
}

// as common_sampler_init, without a vocabulary
static llama_sampler * chain_of(const Case & c, int n_vocab) {
    auto * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    auto add = [&](llama_sampler * sampler) { llama_sampler_chain_add(chain, sampler); };
    if (whole(c, "mirostat")) {
        add(llama_sampler_init_temp(number(c, "temp")));
        const float tau = number(c, "mirostat_tau"), eta = number(c, "mirostat_eta");
        if (whole(c, "mirostat") == 1) {
            add(llama_sampler_init_mirostat(n_vocab, seed(c), tau, eta, 100));
        } else {
            add(llama_sampler_init_mirostat_v2(seed(c), tau, eta));
        }
        return chain;
    }
    const int min_keep = whole(c, "min_keep");
    bool adaptive = false;
    for (const char letter : c.at("chain")) {
        switch (letter) {
            case 'd': {
                std::vector<std::vector<llama_token>> breakers;
                std::stringstream stream(c.at("dry_sequence_breakers"));
                for (std::string part; std::getline(stream, part, ';'); ) {
                    breakers.push_back(tokens(part, ','));
                }
                if (number(c, "dry_multiplier") != 0.0f) {
                    add(llama_sampler_init_dry_testing(
                        number(c, "dry_multiplier"), number(c, "dry_base"),
                        whole(c, "dry_allowed_length"), whole(c, "dry_penalty_last_n"), breakers));
                }
                break;
            }
            case 'e': add(llama_sampler_init_penalties(
                n_vocab, whole(c, "repeat_last_n"), number(c, "repeat_penalty"),
                number(c, "frequency_penalty"), number(c, "presence_penalty"))); break;
            case 's': add(llama_sampler_init_top_n_sigma(number(c, "top_n_sigma"))); break;
            case 'k': add(llama_sampler_init_top_k(whole(c, "top_k"))); break;
            case 'y': add(llama_sampler_init_typical(number(c, "typical_p"), min_keep)); break;
            case 'p': add(llama_sampler_init_top_p(number(c, "top_p"), min_keep)); break;
            case 'm': add(llama_sampler_init_min_p(number(c, "min_p"), min_keep)); break;
            case 'x': add(llama_sampler_init_xtc(
                number(c, "xtc_probability"), number(c, "xtc_threshold"), min_keep, seed(c))); break;
            case 't': add(llama_sampler_init_temp_ext(
                number(c, "temp"), number(c, "dynatemp_range"), number(c, "dynatemp_exponent"))); break;
            case 'a': adaptive = true; break;
        }
    }
    add(adaptive
        ? llama_sampler_init_adaptive_p(number(c, "adaptive_target"), number(c, "adaptive_decay"), seed(c))
        : llama_sampler_init_dist(seed(c)));
    return chain;
}

// the chain of common_sampler_init with a vocabulary: breakers as text, and infill
static common_params_sampling params_of(const Case & c) {
    common_params_sampling p;
    p.seed = seed(c);
    p.top_k = whole(c, "top_k");
    p.temp = number(c, "temp");
    p.dry_multiplier = number(c, "dry_multiplier");
    p.dry_base = number(c, "dry_base");
    p.dry_allowed_length = whole(c, "dry_allowed_length");
    p.dry_penalty_last_n = whole(c, "dry_penalty_last_n");
    p.samplers = common_sampler_types_from_chars(c.at("chain"));
    if (c.count("breakers")) {  // separated by commas
        p.dry_sequence_breakers.clear();
        std::stringstream stream(c.at("breakers"));
        for (std::string part; std::getline(stream, part, ','); ) {
            p.dry_sequence_breakers.push_back(text_of(part));
        }
    }
    return p;
}

static llama_token apply(llama_sampler * sampler, std::vector<llama_token_data> & cur) {
    llama_token_data_array array = { cur.data(), cur.size(), -1, false };
    llama_sampler_apply(sampler, &array);
    return array.selected < 0 ? -1 : array.data[array.selected].id;
}

// as common_sampler_sample: the sampled token is checked, else another one is sampled
static llama_token sample(
    llama_sampler * chain, llama_sampler * grammar, const std::vector<llama_token_data> & logits
) {
    auto cur = logits;
    const llama_token token = apply(chain, cur);
    if (!grammar) {
        return token;
    }
    std::vector<llama_token_data> single = { { token, 1.0f, 0.0f } };
    apply(grammar, single);
    if (single[0].logit != -INFINITY) {
        return token;
    }
    cur = logits;
    apply(grammar, cur);
    return apply(chain, cur);
}

int main() {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    std::map<std::string, llama_model *> models;
    for (std::string line; std::getline(std::cin, line); ) {
        Case c;
        std::stringstream stream(line);
        for (std::string pair; stream >> pair; ) {
            const size_t at = pair.find('=');
            c[pair.substr(0, at)] = pair.substr(at + 1);
        }
        int n_vocab = whole(c, "n_vocab");
        common_sampler * whole_sampler = nullptr;
        llama_sampler * chain, * grammar = nullptr;
        const llama_vocab * vocab = nullptr;
        if (c.count("vocab")) {
            auto & model = models[c.at("vocab")];
            if (!model) {
                auto params = llama_model_default_params();
                params.vocab_only = true;
                model = llama_model_load_from_file(c.at("vocab").c_str(), params);
            }
            vocab = llama_model_get_vocab(model);
            n_vocab = llama_vocab_n_tokens(vocab);
        }
        if (c.count("grammar")) {
            grammar = llama_sampler_init_grammar(vocab, text_of(c.at("grammar")).c_str(), "root");
            chain = chain_of(c, n_vocab);
        } else if (vocab) {
            auto & model = models[c.at("vocab")];
            auto params = params_of(c);
            whole_sampler = common_sampler_init(model, params);
            chain = common_sampler_get(whole_sampler);
        } else {
            chain = chain_of(c, n_vocab);
        }
        for (const llama_token token : tokens(c.at("prompt"), ',')) {
            llama_sampler_accept(chain, token);
        }
        const int n = whole(c, "n"), period = whole(c, "period");
        for (int i = 0; i < n; ++i) {
            const uint64_t row = std::stoull(c.at("row")) + (uint64_t) (i % period);
            const auto cur = candidates(n_vocab, row, number(c, "scale"));
            const llama_token token = sample(chain, grammar, cur);
            llama_sampler_accept(chain, token);
            printf("%s%d", i ? " " : "", token);
            if (grammar) {
                llama_sampler_accept(grammar, token);
                if (llama_vocab_is_eog(vocab, token)) {
                    break;
                }
            }
        }
        printf("\n");
        if (grammar) {
            llama_sampler_free(grammar);
        }
        fflush(stdout);
        if (whole_sampler) {
            common_sampler_free(whole_sampler);
        } else {
            llama_sampler_free(chain);
        }
    }
}
