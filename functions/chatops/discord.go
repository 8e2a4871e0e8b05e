package chatops

import (
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
)

// What an interaction is, and how it is answered: discord.com/developers, receiving and responding.
const (
	discordPing    = 1
	discordCommand = 2
	discordButton  = 3

	discordPong    = 1
	discordMessage = 4
	onlyToYou      = 1 << 6
)

// discord takes buttons and slash commands of an application. Discord tries a door with wrong signatures before it
// believes in it: they are answered with 401.
func (d *desk) discord(w http.ResponseWriter, r *http.Request, body []byte) {
	if err := d.verifyDiscord(r.Header, body); err != nil {
		refuse(w, err)
		return
	}
	type user struct {
		ID string `json:"id"`
	}
	var in struct {
		ID     string `json:"id"`
		Type   int    `json:"type"`
		User   user   `json:"user"`
		Member struct {
			User user `json:"user"`
		} `json:"member"` // in a server; else user
		Data struct {
			Name     string `json:"name"`
			CustomID string `json:"custom_id"`
			Options  []struct {
				Value any `json:"value"`
			} `json:"options"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &in) != nil {
		refuse(w, errBroken)
		return
	}
	if in.Type == discordPing {
		answer(w, map[string]any{"type": discordPong})
		return
	}
	who := first(in.Member.User.ID, in.User.ID)
	if who == "" || in.ID == "" || in.Type != discordCommand && in.Type != discordButton {
		refuse(w, errBroken)
		return
	}
	if err := d.first(r.Context(), "discord", in.ID); err != nil {
		refuse(w, err)
		return
	}
	from := request{"discord", who, in.ID}
	if in.Type == discordButton {
		d.answerDiscord(w, d.click(r.Context(), from, in.Data.CustomID))
		return
	}
	var words []string // one option with all of the command, or one for each word
	for _, o := range in.Data.Options {
		if s, ok := o.Value.(string); ok {
			words = append(words, s)
		}
	}
	d.answerDiscord(w, d.command(r.Context(), from, strings.Join(words, " ")))
}

// verifyDiscord checks the Ed25519 signature over the time and the raw body.
func (d *desk) verifyDiscord(h http.Header, body []byte) error {
	key, err := hex.DecodeString(d.Discord.PublicKey)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return errSignature
	}
	sig, err := hex.DecodeString(h.Get("X-Signature-Ed25519"))
	ts := h.Get("X-Signature-Timestamp")
	if err != nil || len(sig) != ed25519.SignatureSize || !ed25519.Verify(key, append([]byte(ts), body...), sig) {
		return errSignature
	}
	return d.fresh(ts)
}

// markdown is Discord's; a mention or a link in others' text is shown as it is written.
var markdown = strings.NewReplacer("\\", "\\\\", "*", "\\*", "_", "\\_", "~", "\\~", "`", "\\`", "|", "\\|", ">", "\\>", "[", "\\[", "<", "\\<", "#", "\\#", "@", "＠")

func (d *desk) answerDiscord(w http.ResponseWriter, text string) {
	answer(w, map[string]any{"type": discordMessage, "data": map[string]any{
		"content": markdown.Replace(cut(text, 900)), "flags": onlyToYou, "allowed_mentions": map[string]any{"parse": []string{}},
	}})
}
