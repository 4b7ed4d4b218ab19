package httpapi

import (
	"encoding/json"
	"net/http"
)

// success and failure write the answers, in the form of Prometheus' API.
func success(w http.ResponseWriter, data any) {
	answer(w, http.StatusOK, map[string]any{"status": "success", "data": data})
}

func refuse(w http.ResponseWriter, code int, err error) {
	answer(w, code, map[string]any{"status": "error", "error": err.Error()})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(body)
}
