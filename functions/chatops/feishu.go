package chatops

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
)

// feishu takes card buttons and messages to the bot, signed over the encrypted body (open.feishu.cn, event encryption).
func (d *desk) feishu(w http.ResponseWriter, r *http.Request, body []byte) {
	var sealed struct {
		Encrypt string `json:"encrypt"`
	}
	if json.Unmarshal(body, &sealed) != nil || sealed.Encrypt == "" {
		refuse(w, errBroken)
		return
	}
	plain, err := openFeishu(d.Feishu.EncryptKey, sealed.Encrypt)
	if err != nil {
		refuse(w, errSignature)
		return
	}
	var in feishuEvent
	if json.Unmarshal(plain, &in) != nil {
		refuse(w, errBroken)
		return
	}
	if in.Type == "url_verification" { // the only thing that comes without a signature
		if d.Feishu.Token != "" && subtle.ConstantTimeCompare([]byte(in.Token), []byte(d.Feishu.Token)) != 1 {
			refuse(w, errSignature)
			return
		}
		answer(w, map[string]string{"challenge": in.Challenge})
		return
	}
	if err := d.verifyFeishu(r.Header, body); err != nil {
		refuse(w, err)
		return
	}
	if d.Feishu.Token != "" && subtle.ConstantTimeCompare([]byte(in.Header.Token), []byte(d.Feishu.Token)) != 1 {
		refuse(w, errSignature)
		return
	}
	id := in.Header.EventID
	if id == "" {
		refuse(w, errBroken)
		return
	}
	if err := d.first(r.Context(), "feishu", id); err != nil {
		if in.Header.EventType != "card.action.trigger" {
			w.WriteHeader(http.StatusOK) // Feishu repeats events that it thinks lost
			return
		}
		refuse(w, err)
		return
	}
	switch in.Header.EventType {
	case "card.action.trigger":
		text := d.click(r.Context(), request{"feishu", in.Event.Operator.OpenID, id}, in.Event.Action.Value.Token)
		answer(w, map[string]any{"toast": map[string]string{"type": "info", "content": text}})
	case "im.message.receive_v1":
		var content struct {
			Text string `json:"text"`
		}
		if json.Unmarshal([]byte(in.Event.Message.Content), &content) != nil {
			refuse(w, errBroken)
			return
		}
		text := d.command(r.Context(), request{"feishu", in.Event.Sender.ID.OpenID, id}, content.Text)
		d.replyFeishu(r.Context(), in.Event.Message.ID, text)
		answer(w, map[string]string{})
	default:
		w.WriteHeader(http.StatusOK) // not ours to act on
	}
}

type feishuEvent struct {
	Type      string `json:"type"`
	Challenge string `json:"challenge"`
	Token     string `json:"token"`
	Header    struct {
		EventID   string `json:"event_id"`
		EventType string `json:"event_type"`
		Token     string `json:"token"`
	} `json:"header"`
	Event struct {
		Operator struct {
			OpenID string `json:"open_id"`
		} `json:"operator"`
		Action struct {
			Value struct {
				Token string `json:"token"`
			} `json:"value"`
		} `json:"action"`
		Sender struct {
			ID struct {
				OpenID string `json:"open_id"`
			} `json:"sender_id"`
		} `json:"sender"`
		Message struct {
			ID      string `json:"message_id"`
			Content string `json:"content"`
		} `json:"message"`
	} `json:"event"`
}

func (d *desk) verifyFeishu(h http.Header, body []byte) error {
	ts := h.Get("X-Lark-Request-Timestamp")
	sum := sha256.Sum256([]byte(ts + h.Get("X-Lark-Request-Nonce") + d.Feishu.EncryptKey + string(body)))
	if !hmac.Equal([]byte(hex.EncodeToString(sum[:])), []byte(h.Get("X-Lark-Signature"))) {
		return errSignature
	}
	return d.fresh(ts)
}

// openFeishu decrypts AES-256-CBC with the SHA-256 of the key.
func openFeishu(encryptKey, field string) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(field)
	if err != nil || len(b) < 2*aes.BlockSize || len(b)%aes.BlockSize != 0 {
		return nil, errSignature
	}
	key := sha256.Sum256([]byte(encryptKey))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	out := b[aes.BlockSize:]
	cipher.NewCBCDecrypter(block, b[:aes.BlockSize]).CryptBlocks(out, out)
	pad := int(out[len(out)-1])
	if pad == 0 || pad > aes.BlockSize || !bytes.HasSuffix(out, bytes.Repeat([]byte{byte(pad)}, pad)) {
		return nil, errSignature
	}
	return out[:len(out)-pad], nil
}

// replyFeishu answers a message, where the app's secret is known. Nothing is lost without it: the act is done.
func (d *desk) replyFeishu(ctx context.Context, message, text string) {
	if d.Feishu.App == "" || d.Feishu.Secret == "" || message == "" {
		return
	}
	api := d.Feishu.API
	if api == "" {
		api = "https://open.feishu.cn"
	}
	var access struct {
		Token string `json:"tenant_access_token"`
	}
	if !d.post(ctx, api+"/open-apis/auth/v3/tenant_access_token/internal", "", map[string]string{"app_id": d.Feishu.App, "app_secret": d.Feishu.Secret}, &access) {
		return
	}
	content, err := json.Marshal(map[string]string{"text": strings.ReplaceAll(text, "<at", "＜at")})
	if err == nil {
		d.post(ctx, api+"/open-apis/im/v1/messages/"+url.PathEscape(message)+"/reply", access.Token, map[string]string{"msg_type": "text", "content": string(content)}, nil)
	}
}

// post is a request whose answer decides nothing.
func (d *desk) post(ctx context.Context, address, bearer string, v, out any) bool {
	body, err := json.Marshal(v)
	if err != nil {
		return false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return false
	}
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	res, err := d.HTTP.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return out == nil || json.NewDecoder(http.MaxBytesReader(nil, res.Body, maxBody)).Decode(out) == nil
}
